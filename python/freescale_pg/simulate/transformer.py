"""What a recommender of transformer blocks costs, by its multiplications."""

from dataclasses import dataclass

# A backward multiplies twice as much as the forward.
_FORWARD_AND_BACKWARD = 3
_FLOAT32_BYTES = 4
# Adam reads value, gradient and two moments, and writes three of them.
_ADAM_BYTES = 7 * _FLOAT32_BYTES


@dataclass(frozen=True)
class Transformer:
    """Blocks of HSTU (Zhai et al. 2024, arXiv 2402.17152).

    A block of width d has four projections of d·d weights in one (U, V, Q, K), one for its output,
    and causal attention: 2·5·d² operations a token, and 2·d·L² for a sequence of L tokens.

    Attributes:
        layers: Number of blocks.
        width: d.
        flops_per_second: What a rank reaches.
        memory_bytes_per_second: Of a rank's own memory.

    Raises:
        ValueError: A number is not positive.
    """

    layers: int
    width: int
    flops_per_second: float
    memory_bytes_per_second: float

    def __post_init__(self) -> None:
        for name in ("layers", "width", "flops_per_second", "memory_bytes_per_second"):
            if not getattr(self, name) > 0:
                raise ValueError(f"{name} must be positive, got {getattr(self, name)}")

    @property
    def parameters(self) -> int:
        """Number of weights that are not embeddings."""
        return 5 * self.width**2 * self.layers

    @property
    def gradient_bytes(self) -> int:
        """Of the dense gradients, in float32."""
        return _FLOAT32_BYTES * self.parameters

    @property
    def token_seconds(self) -> float:
        """Forward and backward of a token, attention left out."""
        return _FORWARD_AND_BACKWARD * 2 * self.parameters / self.flops_per_second

    @property
    def pair_seconds(self) -> float:
        """Attention of a sequence, over the square of its length."""
        return _FORWARD_AND_BACKWARD * 2 * self.width * self.layers / self.flops_per_second

    @property
    def optimizer_seconds(self) -> float:
        """A step of Adam, which is bound by memory."""
        return _ADAM_BYTES * self.parameters / self.memory_bytes_per_second

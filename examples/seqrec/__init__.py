"""A sequence recommender with a sharded item table, for any ``torch.distributed`` backend."""

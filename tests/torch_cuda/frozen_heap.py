"""What the fork server loads last: from then on its objects are no garbage.

A collection in a rank would otherwise visit every object that torch has made, and so copy the
memory that all ranks share: a second of work for each.
"""

import gc

gc.collect()
gc.freeze()

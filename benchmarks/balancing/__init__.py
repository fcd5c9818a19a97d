"""What ``balance.py`` compares: sets of lengths, ways to deal them out, and a bound."""

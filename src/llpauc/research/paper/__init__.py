"""The paper reproduced: its data sets, its printed figures, its tables and figures made again."""

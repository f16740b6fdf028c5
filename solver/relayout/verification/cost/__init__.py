"""The numbers of a report: its arithmetic, the price of the answer, and the certificate of the bound."""

"""Sixty pairs of a file and labels of its pictures, and whether senseapp reads them right."""

"""Real ImageNet weights and real photographs, from the package index, and what senseapp delivers on them."""

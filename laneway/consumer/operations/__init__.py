"""What operators do to a group from anywhere: commands to the owners of partitions, and their answers."""

"""What a checkpoint sees and says: photographs in, labels out."""

"""What tests of any2ds and of its plugins are made with: a server with scripted faults, and contracts of the parts."""

"""Who is told how a run goes. Each implements `protocols.Reporter`."""

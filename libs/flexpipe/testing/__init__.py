"""What tests stand on: builders, fakes, a real bus. Shipped, so that adapters elsewhere can use it."""

"""Services: programs that answer requests at an address of Berth's, on devices that trainings leave free."""

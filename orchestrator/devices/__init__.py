"""The devices of this host: what there is and what each shows."""

"""What all routes share: who may call, errors, paging, reading and writing, the OpenAPI document."""

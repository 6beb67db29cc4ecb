from typing import Any

# A C structure: its fields are what include/egpu_abi.h says.
class CData:
    def __getattr__(self, name: str) -> Any: ...
    def __setattr__(self, name: str, value: Any) -> None: ...
    def __getitem__(self, index: int) -> CData: ...

ffi: Any
lib: Any

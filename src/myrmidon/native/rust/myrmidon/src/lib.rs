//! Typed Rust functions for Myrmidon, without dependencies. Build the library of functions as a `cdylib`:
//!
//! ```ignore
//! fn count(text: String, top: i64) -> std::collections::BTreeMap<String, i64> { ... }
//! fn parse(text: String) -> Result<i64, std::num::ParseIntError> { ... }
//!
//! myrmidon::library! { count(text, top), parse(text) }
//! ```
//!
//! The signature is derived from the type of the function; the names of the parameters are optional. An `Err` and a
//! panic become the error of the run. docs/native.md is the manual.

mod calls;
mod msgpack;
mod values;

pub use calls::{describe, ffi, register, Callable, Failure, Registered, Returned};
pub use msgpack::{Reader, TypeError, Writer};
pub use values::{read_at, Array, DateTime, Key, Number, Value};

/// `library! { add(a, b), words::count(text, top), plain }`: exports these functions under their names. Once per library.
#[macro_export]
macro_rules! library {
    ($($first:ident $(:: $rest:ident)* $(($($parameter:ident),* $(,)?))?),+ $(,)?) => {
        #[no_mangle]
        pub extern "C" fn myrmidon_entry() -> *const $crate::ffi::Library {
            $crate::describe(vec![$(
                $crate::register(
                    stringify!($first $(:: $rest)*),
                    &[$($(stringify!($parameter)),*)?],
                    $first $(:: $rest)*,
                )
            ),+])
        }
    };
}

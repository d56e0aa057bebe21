//! The C interface: describes the functions of a library, decodes inputs, calls, and encodes outputs.

use crate::msgpack::{Reader, TypeError};
use crate::values::{read_at, Value};
use std::ffi::CString;
use std::fmt::Display;
use std::io::Write;
use std::os::raw::{c_char, c_void};
use std::panic::{catch_unwind, AssertUnwindSafe};

/// The structs of `myrmidon.h`.
pub mod ffi {
    use super::{c_char, c_void};

    #[repr(C)]
    pub struct Buffer {
        pub data: *const u8,
        pub size: usize,
    }

    #[repr(C)]
    pub struct CallResult {
        pub outputs: *const Buffer,
        pub num_outputs: usize,
        pub error_type: *const c_char,
        pub error_message: *const c_char,
        pub owner: *mut c_void,
    }

    pub type Call = extern "C" fn(*const Function, *const Buffer, usize, *mut CallResult) -> i32;
    pub type Release = extern "C" fn(*const Function, *mut CallResult);

    #[repr(C)]
    pub struct Function {
        pub name: *const c_char,
        pub signature: *const c_char,
        pub call: Call,
        pub release: Release,
        pub data: *const c_void,
    }

    #[repr(C)]
    pub struct Library {
        pub abi_version: u32,
        pub flags: u32,
        pub num_functions: usize,
        pub functions: *const Function,
        pub flush: extern "C" fn(),
    }
}

const ABI_VERSION: u32 = 1;
const TYPED_OUTPUTS: u32 = 1;
const OK: i32 = 0;
const FAILED: i32 = 1;
const WRONG_TYPE: i32 = 2;

/// Why a call has no outputs.
pub enum Failure {
    WrongType(TypeError),
    Error { type_name: String, message: String },
}

/// What a function may return: a value, a tuple of values, nothing, or a `Result` of one of these.
pub trait Returned {
    fn output_types() -> String;
    fn outputs(self) -> Result<Vec<Vec<u8>>, Failure>;
}

impl<T: Value> Returned for T {
    fn output_types() -> String {
        T::output_types()
    }
    fn outputs(self) -> Result<Vec<Vec<u8>>, Failure> {
        let mut outputs = Vec::new();
        self.write_outputs(&mut outputs);
        Ok(outputs)
    }
}

impl<T: Value, E: Display> Returned for Result<T, E> {
    fn output_types() -> String {
        T::output_types()
    }
    fn outputs(self) -> Result<Vec<Vec<u8>>, Failure> {
        self.map_err(|error| Failure::Error {
            type_name: error_name(std::any::type_name::<E>()),
            message: error.to_string(),
        })?
        .outputs()
    }
}

/// The name of an error; a text has no name of its own.
fn error_name(full: &str) -> String {
    if full.ends_with("::String") || full.ends_with("str") || full.contains("dyn ") {
        "Error".into()
    } else {
        full.into()
    }
}

/// A function with typed parameters; `A` is the tuple of their types.
pub trait Callable<A> {
    const ARITY: usize;
    fn signature(names: &[&str]) -> String;
    fn invoke(&self, names: &[&str], inputs: &[&[u8]]) -> Result<Vec<Vec<u8>>, Failure>;
}

macro_rules! callables {
    ($($arity:literal ($($type:ident $index:tt),*))*) => {$(
        impl<Fun, R, $($type),*> Callable<($($type,)*)> for Fun
        where
            Fun: Fn($($type),*) -> R,
            R: Returned,
            $($type: Value,)*
        {
            const ARITY: usize = $arity;

            fn signature(names: &[&str]) -> String {
                let types: [String; $arity] = [$($type::type_name()),*];
                let shown: Vec<String> = types.iter().enumerate().map(|(index, kind)| match names.get(index) {
                    Some(name) => format!("{name}:{kind}"),
                    None => kind.clone(),
                }).collect();
                format!("({})->{}", shown.join(","), R::output_types())
            }

            #[allow(unused_variables)]
            fn invoke(&self, names: &[&str], inputs: &[&[u8]]) -> Result<Vec<Vec<u8>>, Failure> {
                if inputs.len() != $arity {
                    let reason = format!("takes {} inputs, given {}", $arity, inputs.len());
                    return Err(Failure::WrongType(TypeError::new(reason)));
                }
                self($(argument::<$type>(names, inputs[$index], $index)?),*).outputs()
            }
        }
    )*};
}
callables! {
    0 ()
    1 (A 0)
    2 (A 0, B 1)
    3 (A 0, B 1, C 2)
    4 (A 0, B 1, C 2, D 3)
    5 (A 0, B 1, C 2, D 3, E 4)
    6 (A 0, B 1, C 2, D 3, E 4, F 5)
    7 (A 0, B 1, C 2, D 3, E 4, F 5, G 6)
    8 (A 0, B 1, C 2, D 3, E 4, F 5, G 6, H 7)
}

fn argument<T: Value>(names: &[&str], input: &[u8], index: usize) -> Result<T, Failure> {
    let mut reader = Reader::new(input);
    let path = || match names.get(index) {
        Some(name) => format!("argument {name}"),
        None => format!("argument {}", index + 1),
    };
    let value = read_at(&mut reader, path).map_err(Failure::WrongType)?;
    reader.finish().map_err(Failure::WrongType)?;
    Ok(value)
}

type Invoke = Box<dyn Fn(&[&[u8]]) -> Result<Vec<Vec<u8>>, Failure>>;

/// A function that is to be exported.
pub struct Registered {
    name: CString,
    signature: CString,
    invoke: Invoke,
}

/// Compared when a library is compiled.
struct Names<A, F, const N: usize>(std::marker::PhantomData<(A, F)>);

impl<A, F: Callable<A>, const N: usize> Names<A, F, N> {
    const FIT: () = assert!(N == 0 || N == F::ARITY, "library!: give a name for every parameter, or none");
}

/// Called by `library!`.
pub fn register<A, F, const N: usize>(path: &str, names: &'static [&'static str; N], function: F) -> Registered
where
    F: Callable<A> + 'static,
{
    #[allow(clippy::let_unit_value)]
    let _ = Names::<A, F, N>::FIT;
    let signature = F::signature(names);
    let name = path.rsplit(':').next().unwrap_or(path).trim();
    Registered {
        name: CString::new(name).expect("a name of Rust"),
        signature: CString::new(signature).expect("type strings"),
        invoke: Box::new(move |inputs| function.invoke(names, inputs)),
    }
}

/// Called by `library!`. What it returns stays valid until the process ends.
pub fn describe(registered: Vec<Registered>) -> *const ffi::Library {
    let registered: &'static [Registered] = Box::leak(registered.into_boxed_slice());
    let functions: Vec<ffi::Function> = registered
        .iter()
        .map(|one| ffi::Function {
            name: one.name.as_ptr(),
            signature: one.signature.as_ptr(),
            call,
            release,
            data: (one as *const Registered).cast(),
        })
        .collect();
    let functions: &'static [ffi::Function] = Box::leak(functions.into_boxed_slice());
    Box::leak(Box::new(ffi::Library {
        abi_version: ABI_VERSION,
        flags: TYPED_OUTPUTS,
        num_functions: functions.len(),
        functions: functions.as_ptr(),
        flush,
    }))
}

/// What a call leaves for its caller, until it is released.
struct Outcome {
    _data: Vec<Vec<u8>>,
    outputs: Vec<ffi::Buffer>,
    error_type: CString,
    error_message: CString,
}

extern "C" fn call(function: *const ffi::Function, inputs: *const ffi::Buffer, count: usize, result: *mut ffi::CallResult) -> i32 {
    // Safe: the caller keeps to myrmidon.h, and `data` is what `describe` has stored.
    let (registered, buffers, result) = unsafe {
        let buffers: &[ffi::Buffer] = if count == 0 { &[] } else { std::slice::from_raw_parts(inputs, count) };
        (&*(*function).data.cast::<Registered>(), buffers, &mut *result)
    };
    let (status, data, error_type, error_message) = match catch_unwind(AssertUnwindSafe(|| invoke(registered, buffers))) {
        Ok(Ok(data)) => (OK, data, String::new(), String::new()),
        Ok(Err(Failure::WrongType(problem))) => (WRONG_TYPE, vec![], "TypeError".into(), problem.to_string()),
        Ok(Err(Failure::Error { type_name, message })) => (FAILED, vec![], type_name, message),
        Err(payload) => (FAILED, vec![], "panic".into(), panic_message(&*payload)),
    };
    let outputs = data.iter().map(|one| ffi::Buffer { data: one.as_ptr(), size: one.len() }).collect();
    let outcome = Box::new(Outcome {
        outputs,
        _data: data,
        error_type: c_text(error_type),
        error_message: c_text(error_message),
    });
    result.outputs = outcome.outputs.as_ptr();
    result.num_outputs = outcome.outputs.len();
    result.error_type = outcome.error_type.as_ptr();
    result.error_message = outcome.error_message.as_ptr();
    result.owner = Box::into_raw(outcome).cast();
    status
}

fn invoke(registered: &Registered, buffers: &[ffi::Buffer]) -> Result<Vec<Vec<u8>>, Failure> {
    let inputs: Vec<&[u8]> = buffers
        .iter()
        .map(|one| if one.size == 0 { &[][..] } else { unsafe { std::slice::from_raw_parts(one.data, one.size) } })
        .collect();
    (registered.invoke)(&inputs)
}

fn panic_message(payload: &(dyn std::any::Any + Send)) -> String {
    if let Some(text) = payload.downcast_ref::<&str>() {
        return (*text).to_string();
    }
    payload.downcast_ref::<String>().cloned().unwrap_or_else(|| "a panic without a text".into())
}

fn c_text(text: String) -> CString {
    CString::new(text.replace('\0', "\u{fffd}")).unwrap_or_default()
}

extern "C" fn release(_: *const ffi::Function, result: *mut ffi::CallResult) {
    unsafe {
        let owner = std::mem::replace(&mut (*result).owner, std::ptr::null_mut());
        if !owner.is_null() {
            drop(Box::from_raw(owner.cast::<Outcome>()));
        }
    }
}

extern "C" fn flush() {
    // An error means that standard output was closed; the call itself has succeeded.
    let _ = std::io::stdout().flush();
}

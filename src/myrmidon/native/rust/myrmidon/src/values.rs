//! The types of values: how each is written and read, and its type string. docs/native.md has the table.

use crate::msgpack::{Reader, TypeError, Writer};
use std::collections::{BTreeMap, HashMap};
use std::hash::Hash;

/// A type of inputs and outputs. Implemented for your own types by `value_struct!`, `value_enum!` and `value_flags!`.
pub trait Value: Sized {
    /// The type string, such as `List<int64>`.
    fn type_name() -> String;
    fn write(&self, writer: &mut Writer);
    fn read(reader: &mut Reader<'_>) -> Result<Self, TypeError>;

    /// The outputs of a function that returns this type; a tuple has one for each item.
    fn output_types() -> String {
        Self::type_name()
    }

    fn write_outputs(&self, outputs: &mut Vec<Vec<u8>>) {
        let mut writer = Writer::default();
        self.write(&mut writer);
        outputs.push(writer.data);
    }
}

/// Reads the part of a value that `path` names; a problem inside says so.
pub fn read_at<T: Value>(reader: &mut Reader<'_>, path: impl FnOnce() -> String) -> Result<T, TypeError> {
    T::read(reader).map_err(|problem| problem.inside(&path()))
}

/// `datetime.datetime` of Python as its ISO 8601 text.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct DateTime(pub String);

/// `numpy.ndarray`: the type of its items as numpy writes it (`<f8`), its shape, and the items in C order.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Array {
    pub dtype: String,
    pub shape: Vec<i64>,
    pub data: Vec<u8>,
}

/// A number that an array may have as its items.
pub trait Number: Copy {
    const DTYPE: &'static str;
    const SIZE: usize;
    fn append(self, data: &mut Vec<u8>);
    fn from_slice(data: &[u8]) -> Self;
}

macro_rules! numbers {
    ($($type:ident $dtype:literal)*) => {$(
        impl Number for $type {
            const DTYPE: &'static str = $dtype;
            const SIZE: usize = std::mem::size_of::<$type>();
            fn append(self, data: &mut Vec<u8>) {
                data.extend_from_slice(&self.to_le_bytes());
            }
            fn from_slice(data: &[u8]) -> Self {
                $type::from_le_bytes(data.try_into().expect("a slice of the size of the type"))
            }
        }
    )*};
}
numbers! { i8 "|i1" u8 "|u1" i16 "<i2" u16 "<u2" i32 "<i4" u32 "<u4" i64 "<i8" u64 "<u8" f32 "<f4" f64 "<f8" }

impl Array {
    /// An array of one dimension.
    pub fn of<T: Number>(values: &[T]) -> Self {
        let mut data = Vec::with_capacity(values.len() * T::SIZE);
        values.iter().for_each(|value| value.append(&mut data));
        Array { dtype: T::DTYPE.into(), shape: vec![values.len() as i64], data }
    }

    /// The items in one row.
    pub fn values<T: Number>(&self) -> Result<Vec<T>, TypeError> {
        if self.dtype != T::DTYPE {
            return Err(TypeError::new(format!("expected an array of {}, given {}", T::DTYPE, self.dtype)));
        }
        Ok(self.data.chunks_exact(T::SIZE).map(T::from_slice).collect())
    }
}

impl Value for bool {
    fn type_name() -> String {
        "bool".into()
    }
    fn write(&self, writer: &mut Writer) {
        writer.boolean(*self);
    }
    fn read(reader: &mut Reader<'_>) -> Result<Self, TypeError> {
        reader.boolean()
    }
}

/// The types that the keys of a map may have.
pub trait Key: Value {
    fn path(&self) -> String;
}

macro_rules! integers {
    ($($type:ident $name:literal)*) => {$(
        impl Value for $type {
            fn type_name() -> String {
                $name.into()
            }
            fn write(&self, writer: &mut Writer) {
                writer.integer(i64::from(*self));
            }
            fn read(reader: &mut Reader<'_>) -> Result<Self, TypeError> {
                Ok(reader.integer(i64::from($type::MIN), i64::from($type::MAX), $name)? as $type)
            }
        }
        impl Key for $type {
            fn path(&self) -> String {
                format!("[{self}]")
            }
        }
    )*};
}
integers! { i8 "int8" i16 "int16" i32 "int32" i64 "int64" }

impl Value for f64 {
    fn type_name() -> String {
        "double".into()
    }
    fn write(&self, writer: &mut Writer) {
        writer.real(*self);
    }
    fn read(reader: &mut Reader<'_>) -> Result<Self, TypeError> {
        reader.real()
    }
}

impl Value for String {
    fn type_name() -> String {
        "string".into()
    }
    fn write(&self, writer: &mut Writer) {
        writer.text(self);
    }
    fn read(reader: &mut Reader<'_>) -> Result<Self, TypeError> {
        Ok(reader.text()?.to_string())
    }
}

impl Key for String {
    fn path(&self) -> String {
        format!("['{self}']")
    }
}

impl Value for Vec<u8> {
    fn type_name() -> String {
        "bytes".into()
    }
    fn write(&self, writer: &mut Writer) {
        writer.binary(self);
    }
    fn read(reader: &mut Reader<'_>) -> Result<Self, TypeError> {
        Ok(reader.binary()?.to_vec())
    }
}

impl Key for Vec<u8> {
    fn path(&self) -> String {
        "[bytes]".into()
    }
}

impl Value for DateTime {
    fn type_name() -> String {
        "datetime.datetime".into()
    }
    fn write(&self, writer: &mut Writer) {
        writer.text(&self.0);
    }
    fn read(reader: &mut Reader<'_>) -> Result<Self, TypeError> {
        Ok(DateTime(reader.text()?.to_string()))
    }
}

impl<T: Value> Value for Option<T> {
    fn type_name() -> String {
        format!("Optional<{}>", T::type_name())
    }
    fn write(&self, writer: &mut Writer) {
        match self {
            Some(value) => value.write(writer),
            None => writer.nil(),
        }
    }
    fn read(reader: &mut Reader<'_>) -> Result<Self, TypeError> {
        Ok(if reader.take_nil()? { None } else { Some(T::read(reader)?) })
    }
}

/// The same type as `T`, for a class that contains itself.
impl<T: Value> Value for Box<T> {
    fn type_name() -> String {
        T::type_name()
    }
    fn write(&self, writer: &mut Writer) {
        (**self).write(writer);
    }
    fn read(reader: &mut Reader<'_>) -> Result<Self, TypeError> {
        Ok(Box::new(T::read(reader)?))
    }
}

impl<T: Value> Value for Vec<T> {
    fn type_name() -> String {
        format!("List<{}>", T::type_name())
    }
    fn write(&self, writer: &mut Writer) {
        writer.array(self.len());
        self.iter().for_each(|value| value.write(writer));
    }
    fn read(reader: &mut Reader<'_>) -> Result<Self, TypeError> {
        let size = reader.array(&Self::type_name())?;
        let mut values = Vec::with_capacity(size);
        for index in 0..size {
            values.push(read_at(reader, || format!("[{index}]"))?);
        }
        reader.leave();
        Ok(values)
    }
}

macro_rules! maps {
    ($($map:ident ($($bound:tt)+))*) => {$(
        impl<K: Key + $($bound)+, V: Value> Value for $map<K, V> {
            fn type_name() -> String {
                format!("Map<{},{}>", K::type_name(), V::type_name())
            }
            fn write(&self, writer: &mut Writer) {
                writer.map(self.len());
                for (key, value) in self {
                    key.write(writer);
                    value.write(writer);
                }
            }
            fn read(reader: &mut Reader<'_>) -> Result<Self, TypeError> {
                let size = reader.map(&Self::type_name())?;
                let mut values = $map::new();
                for _ in 0..size {
                    let key: K = read_at(reader, || "a key".into())?;
                    let value = read_at(reader, || key.path())?;
                    values.insert(key, value);
                }
                reader.leave();
                Ok(values)
            }
        }
    )*};
}
maps! { BTreeMap (Ord) HashMap (Eq + Hash) }

impl Value for () {
    fn type_name() -> String {
        "()".into()
    }
    fn write(&self, writer: &mut Writer) {
        writer.nil();
    }
    fn read(reader: &mut Reader<'_>) -> Result<Self, TypeError> {
        reader.take_nil().map(|_| ())
    }
    fn write_outputs(&self, _: &mut Vec<Vec<u8>>) {}
}

macro_rules! tuples {
    ($($size:literal ($($type:ident $index:tt),+))*) => {$(
        impl<$($type: Value),+> Value for ($($type,)+) {
            fn type_name() -> String {
                format!("Tuple<{}>", [$($type::type_name()),+].join(","))
            }
            fn write(&self, writer: &mut Writer) {
                writer.array($size);
                $(self.$index.write(writer);)+
            }
            fn read(reader: &mut Reader<'_>) -> Result<Self, TypeError> {
                let size = reader.array(&Self::type_name())?;
                if size != $size {
                    return Err(TypeError::new(format!("expected {}, given {size} items", Self::type_name())));
                }
                let values = ($(read_at::<$type>(reader, || format!("[{}]", $index))?,)+);
                reader.leave();
                Ok(values)
            }
            fn output_types() -> String {
                let names = [$($type::type_name()),+];
                if names.len() == 1 { names[0].clone() } else { format!("({})", names.join(",")) }
            }
            fn write_outputs(&self, outputs: &mut Vec<Vec<u8>>) {
                $(
                    let mut writer = Writer::default();
                    self.$index.write(&mut writer);
                    outputs.push(writer.data);
                )+
            }
        }
    )*};
}
tuples! {
    1 (A 0)
    2 (A 0, B 1)
    3 (A 0, B 1, C 2)
    4 (A 0, B 1, C 2, D 3)
    5 (A 0, B 1, C 2, D 3, E 4)
    6 (A 0, B 1, C 2, D 3, E 4, F 5)
    7 (A 0, B 1, C 2, D 3, E 4, F 5, G 6)
    8 (A 0, B 1, C 2, D 3, E 4, F 5, G 6, H 7)
}

/// `value_struct!(Point { x, y });`: the struct is a class of values with these fields, those of the class in Python.
#[macro_export]
macro_rules! value_struct {
    ($type:ident { $($field:ident),+ $(,)? }) => {
        $crate::value_struct!($type, stringify!($type), $($field),+);
    };
    ($type:path, $name:expr, $($field:ident),+) => {
        impl $crate::Value for $type {
            fn type_name() -> String {
                $name.to_string()
            }
            fn write(&self, writer: &mut $crate::Writer) {
                writer.map([$(stringify!($field)),+].len());
                $(
                    writer.text(stringify!($field));
                    $crate::Value::write(&self.$field, writer);
                )+
            }
            fn read(reader: &mut $crate::Reader<'_>) -> Result<Self, $crate::TypeError> {
                let size = reader.map($name)?;
                $(let mut $field = None;)+
                for _ in 0..size {
                    match reader.text()? {
                        $(stringify!($field) => {
                            $field = Some($crate::read_at(reader, || format!(".{}", stringify!($field)))?);
                        })+
                        other => return Err($crate::TypeError::new(format!("{} has no field '{other}'", $name))),
                    }
                }
                reader.leave();
                let missing = |field| $crate::TypeError::new(format!("{} needs the field '{field}'", $name));
                Ok(Self { $($field: $field.ok_or_else(|| missing(stringify!($field)))?),+ })
            }
        }
    };
}

/// `value_enum!(Color { Red = "RED", Green = "GREEN" });`: the names are those of the members in Python.
#[macro_export]
macro_rules! value_enum {
    ($type:ident { $($variant:ident = $name:literal),+ $(,)? }) => {
        impl $crate::Value for $type {
            fn type_name() -> String {
                stringify!($type).to_string()
            }
            fn write(&self, writer: &mut $crate::Writer) {
                writer.text(match self { $($type::$variant => $name),+ });
            }
            fn read(reader: &mut $crate::Reader<'_>) -> Result<Self, $crate::TypeError> {
                match reader.text()? {
                    $($name => Ok($type::$variant),)+
                    other => Err($crate::TypeError::new(format!("expected {}, given '{other}'", stringify!($type)))),
                }
            }
        }
    };
}

/// `value_flags!(Rights);` for `struct Rights(pub i64);`: sums of members, as Python's `enum.Flag`.
#[macro_export]
macro_rules! value_flags {
    ($type:ident) => {
        impl $crate::Value for $type {
            fn type_name() -> String {
                stringify!($type).to_string()
            }
            fn write(&self, writer: &mut $crate::Writer) {
                writer.integer(self.0);
            }
            fn read(reader: &mut $crate::Reader<'_>) -> Result<Self, $crate::TypeError> {
                Ok($type(reader.integer(i64::MIN, i64::MAX, stringify!($type))?))
            }
        }
    };
}

value_struct!(Array, "numpy.ndarray", dtype, shape, data);

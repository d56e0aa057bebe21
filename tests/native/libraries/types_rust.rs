// Functions that return what they get, for every type of values.
use myrmidon::{value_enum, value_flags, value_struct, Array, DateTime};
use std::collections::{BTreeMap, HashMap};

pub enum Color {
    Red,
    Green,
}
value_enum!(Color { Red = "RED", Green = "GREEN" });

pub struct Rights(pub i64);
value_flags!(Rights);

pub struct Point {
    x: f64,
    y: f64,
    name: Option<String>,
}
value_struct!(Point { x, y, name });

pub struct Tree {
    value: i64,
    children: Vec<Tree>,
    colors: BTreeMap<String, Color>,
}
value_struct!(Tree { value, children, colors });

pub struct Link {
    value: i64,
    next: Option<Box<Link>>,
}
value_struct!(Link { value, next });

pub struct Pair {
    left: i64,
    right: String,
}
value_struct!(Pair { left, right });

pub struct Record {
    first_name: String,
    points: Vec<Point>,
    pair: Pair,
    at: DateTime,
    rights: Rights,
    data: Vec<u8>,
}
value_struct!(Record { first_name, points, pair, at, rights, data });

macro_rules! echo {
    ($($name:ident $type:ty;)*) => {
        $(fn $name(value: $type) -> $type {
            value
        })*
        myrmidon::library! { $($name(value)),*, length, doubled(array) }
    };
}

echo! {
    echo_int8 i8;
    echo_int16 i16;
    echo_int32 i32;
    echo_int64 i64;
    echo_integer i64;
    echo_real f64;
    echo_boolean bool;
    echo_binary Vec<u8>;
    echo_text String;
    echo_integers Vec<i64>;
    echo_small_integers Vec<i8>;
    echo_reals Vec<f64>;
    echo_booleans Vec<bool>;
    echo_texts Vec<String>;
    echo_binaries Vec<Vec<u8>>;
    echo_deep Vec<Vec<Option<f64>>>;
    echo_counts BTreeMap<String, i64>;
    echo_by_number HashMap<i64, Vec<String>>;
    echo_by_small_number BTreeMap<i16, f64>;
    echo_by_binary HashMap<Vec<u8>, bool>;
    echo_maybe_integer Option<i64>;
    echo_maybe_texts Option<Vec<String>>;
    echo_pairs Vec<(i64, String)>;
    echo_both (i64, String);
    echo_one (f64,);
    echo_three (Color, BTreeMap<String, bool>, (f64, bool));
    echo_color Color;
    echo_rights Rights;
    echo_point Point;
    echo_tree Tree;
    echo_link Link;
    echo_pair Pair;
    echo_record Record;
    echo_moment DateTime;
    echo_array Array;
}

fn length(text: String) -> f64 {
    text.len() as f64
}

fn doubled(array: Array) -> Result<Array, myrmidon::TypeError> {
    let values: Vec<f64> = array.values::<f64>()?.iter().map(|value| value * 2.0).collect();
    Ok(Array { shape: array.shape, ..Array::of(&values) })
}

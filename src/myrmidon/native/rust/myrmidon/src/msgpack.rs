//! MessagePack: writes the shortest form of each object, as Myrmidon's other encoders do, and reads all.

/// A value does not have the type that is expected. `path` says where in the value, as `[3].name`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct TypeError {
    pub reason: String,
    pub path: String,
}

impl TypeError {
    pub fn new(reason: impl Into<String>) -> Self {
        TypeError { reason: reason.into(), path: String::new() }
    }

    /// The same problem, seen from the object that contains the value.
    pub fn inside(self, outer: &str) -> Self {
        TypeError { path: format!("{outer}{}", self.path), ..self }
    }
}

impl std::fmt::Display for TypeError {
    fn fmt(&self, out: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        if self.path.is_empty() {
            write!(out, "{}", self.reason)
        } else {
            write!(out, "{}: {}", self.path, self.reason)
        }
    }
}

impl std::error::Error for TypeError {}

#[derive(Default)]
pub struct Writer {
    pub data: Vec<u8>,
}

impl Writer {
    pub fn nil(&mut self) {
        self.data.push(0xc0);
    }

    pub fn boolean(&mut self, value: bool) {
        self.data.push(if value { 0xc3 } else { 0xc2 });
    }

    pub fn integer(&mut self, value: i64) {
        match value {
            0..=0x7f => self.data.push(value as u8),
            0x80..=0xff => self.number(0xcc, value as u64, 1),
            0x100..=0xffff => self.number(0xcd, value as u64, 2),
            0x1_0000..=0xffff_ffff => self.number(0xce, value as u64, 4),
            0x1_0000_0000..=i64::MAX => self.number(0xcf, value as u64, 8),
            -32..=-1 => self.data.push(value as u8),
            -0x80..=-33 => self.number(0xd0, value as u64, 1),
            -0x8000..=-0x81 => self.number(0xd1, value as u64, 2),
            -0x8000_0000..=-0x8001 => self.number(0xd2, value as u64, 4),
            _ => self.number(0xd3, value as u64, 8),
        }
    }

    pub fn real(&mut self, value: f64) {
        self.number(0xcb, value.to_bits(), 8);
    }

    pub fn text(&mut self, value: &str) {
        match value.len() {
            size @ 0..=31 => self.data.push(0xa0 | size as u8),
            size @ 32..=0xff => self.number(0xd9, size as u64, 1),
            size => self.wide(0xda, 0xdb, size),
        }
        self.data.extend_from_slice(value.as_bytes());
    }

    pub fn binary(&mut self, value: &[u8]) {
        match value.len() {
            size @ 0..=0xff => self.number(0xc4, size as u64, 1),
            size => self.wide(0xc5, 0xc6, size),
        }
        self.data.extend_from_slice(value);
    }

    pub fn array(&mut self, size: usize) {
        if size < 16 {
            self.data.push(0x90 | size as u8);
        } else {
            self.wide(0xdc, 0xdd, size);
        }
    }

    pub fn map(&mut self, size: usize) {
        if size < 16 {
            self.data.push(0x80 | size as u8);
        } else {
            self.wide(0xde, 0xdf, size);
        }
    }

    fn number(&mut self, code: u8, value: u64, width: usize) {
        self.data.push(code);
        self.data.extend_from_slice(&value.to_be_bytes()[8 - width..]);
    }

    fn wide(&mut self, middle: u8, large: u8, size: usize) {
        if size < 0x1_0000 {
            self.number(middle, size as u64, 2);
        } else {
            let size = u32::try_from(size).expect("too many for one object of MessagePack");
            self.number(large, u64::from(size), 4);
        }
    }
}

const MAX_DEPTH: usize = 900;

/// Reads one object. Every size is compared with what is left before memory is taken.
pub struct Reader<'a> {
    data: &'a [u8],
    depth: usize,
}

impl<'a> Reader<'a> {
    pub fn new(data: &'a [u8]) -> Self {
        Reader { data, depth: 0 }
    }

    pub fn take_nil(&mut self) -> Result<bool, TypeError> {
        if self.peek()? != 0xc0 {
            return Ok(false);
        }
        self.data = &self.data[1..];
        Ok(true)
    }

    pub fn boolean(&mut self) -> Result<bool, TypeError> {
        let value = match self.peek()? {
            0xc2 => false,
            0xc3 => true,
            _ => return Err(self.wrong("bool")),
        };
        self.data = &self.data[1..];
        Ok(value)
    }

    pub fn integer(&mut self, low: i64, high: i64, name: &str) -> Result<i64, TypeError> {
        let before = self.data;
        let value = self.any_integer()?.ok_or_else(|| self.wrong(name))?;
        if i128::from(low) <= value && value <= i128::from(high) {
            return Ok(value as i64);
        }
        self.data = before;
        Err(TypeError::new(format!("expected {name} ({low}..{high}), given {}", self.describe())))
    }

    pub fn real(&mut self) -> Result<f64, TypeError> {
        match self.peek()? {
            0xcb => {
                self.take(1)?;
                Ok(f64::from_bits(self.number(8)?))
            }
            0xca => {
                self.take(1)?;
                Ok(f64::from(f32::from_bits(self.number(4)? as u32)))
            }
            _ => self.any_integer()?.map(|value| value as f64).ok_or_else(|| self.wrong("double")),
        }
    }

    pub fn text(&mut self) -> Result<&'a str, TypeError> {
        let size = match self.peek()? {
            code @ 0xa0..=0xbf => {
                self.take(1)?;
                usize::from(code & 31)
            }
            code @ 0xd9..=0xdb => self.size(code - 0xd9)?,
            _ => return Err(self.wrong("string")),
        };
        std::str::from_utf8(self.take(size)?).map_err(|_| TypeError::new("the text is not UTF-8"))
    }

    pub fn binary(&mut self) -> Result<&'a [u8], TypeError> {
        match self.peek()? {
            code @ 0xc4..=0xc6 => {
                let size = self.size(code - 0xc4)?;
                self.take(size)
            }
            _ => Err(self.wrong("bytes")),
        }
    }

    pub fn array(&mut self, name: &str) -> Result<usize, TypeError> {
        self.items(0x90, 0xdc, name, 1)
    }

    pub fn map(&mut self, name: &str) -> Result<usize, TypeError> {
        self.items(0x80, 0xde, name, 2)
    }

    /// After the items of an array or a map.
    pub fn leave(&mut self) {
        self.depth -= 1;
    }

    pub fn finish(&self) -> Result<(), TypeError> {
        match self.data.len() {
            0 => Ok(()),
            left => Err(TypeError::new(format!("{left} bytes follow the value"))),
        }
    }

    pub fn wrong(&self, expected: &str) -> TypeError {
        TypeError::new(format!("expected {expected}, given {}", self.describe()))
    }

    fn describe(&self) -> String {
        let code = match self.data.first() {
            None => return "nothing".into(),
            Some(code) => *code,
        };
        let mut copy = Reader { data: self.data, depth: 0 };
        if let Ok(Some(value)) = copy.any_integer() {
            return format!("the integer {value}");
        }
        match code {
            0x80..=0x8f | 0xde | 0xdf => "a map",
            0x90..=0x9f | 0xdc | 0xdd => "a list",
            0xa0..=0xbf | 0xd9..=0xdb => "a text",
            0xc0 => "none",
            0xc2 | 0xc3 => "a bool",
            0xc4..=0xc6 => "bytes",
            0xca | 0xcb => "a float",
            _ => "an unknown object",
        }
        .into()
    }

    fn peek(&self) -> Result<u8, TypeError> {
        self.data.first().copied().ok_or_else(too_early)
    }

    fn take(&mut self, size: usize) -> Result<&'a [u8], TypeError> {
        if size > self.data.len() {
            return Err(too_early());
        }
        let (taken, rest) = self.data.split_at(size);
        self.data = rest;
        Ok(taken)
    }

    fn number(&mut self, width: usize) -> Result<u64, TypeError> {
        Ok(self.take(width)?.iter().fold(0, |value, byte| value << 8 | u64::from(*byte)))
    }

    fn size(&mut self, power: u8) -> Result<usize, TypeError> {
        self.take(1)?;
        Ok(self.number(1 << power)? as usize)
    }

    /// None if there is no integer.
    fn any_integer(&mut self) -> Result<Option<i128>, TypeError> {
        let code = self.peek()?;
        if !matches!(code, 0..=0x7f | 0xe0..=0xff | 0xcc..=0xd3) {
            return Ok(None);
        }
        self.take(1)?;
        Ok(Some(match code {
            0xcc..=0xcf => i128::from(self.number(1 << (code - 0xcc))?),
            0xd0 => i128::from(self.number(1)? as i8),
            0xd1 => i128::from(self.number(2)? as i16),
            0xd2 => i128::from(self.number(4)? as i32),
            0xd3 => i128::from(self.number(8)? as i64),
            _ => i128::from(code as i8),
        }))
    }

    fn items(&mut self, fixed: u8, wide: u8, name: &str, least: usize) -> Result<usize, TypeError> {
        let code = self.peek()?;
        let size = if code & 0xf0 == fixed {
            self.take(1)?;
            usize::from(code & 15)
        } else if code == wide || code == wide + 1 {
            self.size(code - wide + 1)?
        } else {
            return Err(self.wrong(name));
        };
        if size > self.data.len() / least {
            return Err(too_early());
        }
        self.depth += 1;
        if self.depth > MAX_DEPTH {
            return Err(TypeError::new("the value is nested too deeply"));
        }
        Ok(size)
    }
}

fn too_early() -> TypeError {
    TypeError::new("the value ends too early")
}

//! Records: state in the form in which a process sends it to its successor.
//!
//! A record is a sequence of parts, and a part is a sequence of fields in little endian. Each part has a tag, a
//! flag and a length. A reader skips an optional part with an unknown tag, and refuses a record with any other
//! unknown part. A later version of a part has more fields at its end: an older reader ignores them, and a newer
//! reader takes their defaults where they are missing.
//!
//! A reader trusts no byte. Lists have limits, and take memory only as their entries are read.
//!
//! Times are stored as distances from the time of the record, since clocks of two machines differ.

use std::fmt;

/// Flag of a part without which the state cannot be continued.
const REQUIRED: u16 = 1;

/// Reason why bytes are no record that this version can read.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RecordError {
    /// End of the bytes within a field.
    Short,
    /// Required part with this tag, which this version does not have.
    UnknownPart(u16),
    /// Part that is not there.
    Missing(u16),
    /// Field without a meaning.
    Invalid(&'static str),
}

impl fmt::Display for RecordError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Short => f.write_str("it ends too early"),
            Self::UnknownPart(tag) => write!(f, "it has a required part {tag:#x} of a later version"),
            Self::Missing(tag) => write!(f, "its part {tag:#x} is missing"),
            Self::Invalid(what) => write!(f, "it has an invalid {what}"),
        }
    }
}

impl std::error::Error for RecordError {}

/// A number with a fixed size in a record.
pub trait Field: Copy {
    type Bytes: AsRef<[u8]> + for<'a> TryFrom<&'a [u8]>;

    fn to_bytes(self) -> Self::Bytes;

    fn of_bytes(bytes: Self::Bytes) -> Option<Self>;
}

macro_rules! numbers {
    ($($number:ty),*) => {$(
        impl Field for $number {
            type Bytes = [u8; size_of::<$number>()];

            fn to_bytes(self) -> Self::Bytes {
                self.to_le_bytes()
            }

            fn of_bytes(bytes: Self::Bytes) -> Option<Self> {
                Some(Self::from_le_bytes(bytes))
            }
        }
    )*};
}

numbers!(u8, u16, u32, u64, i64);

impl Field for bool {
    type Bytes = [u8; 1];

    fn to_bytes(self) -> [u8; 1] {
        [self.into()]
    }

    fn of_bytes([byte]: [u8; 1]) -> Option<Self> {
        (byte < 2).then_some(byte == 1)
    }
}

/// Need of a reader for a part.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Need {
    /// Part that a reader without its tag skips.
    Optional,
    /// Part whose state a host relies on.
    Required,
}

/// Writer of a record.
#[derive(Clone, Debug, Default)]
pub struct Writer {
    bytes: Vec<u8>,
    now_ns: u64,
}

impl Writer {
    /// Creates the writer of a record that is made at this time.
    pub fn new(now_ns: u64) -> Self {
        Self { bytes: Vec::new(), now_ns }
    }

    /// Returns the bytes of the record.
    pub fn finish(self) -> Vec<u8> {
        self.bytes
    }

    /// Writes a part with the fields that `fill` writes.
    pub fn part(&mut self, tag: u16, need: Need, fill: impl FnOnce(&mut Self)) {
        self.put(tag);
        self.put(if need == Need::Required { REQUIRED } else { 0 });
        let at = self.bytes.len();
        self.put(0u32);
        let begin = self.bytes.len();
        fill(self);
        let length = (self.bytes.len() - begin) as u32;
        self.bytes[at..begin].copy_from_slice(&length.to_le_bytes());
    }

    pub fn put(&mut self, number: impl Field) {
        self.bytes.extend_from_slice(number.to_bytes().as_ref());
    }

    /// Writes a point in time.
    pub fn time(&mut self, at_ns: u64) {
        self.put(at_ns.wrapping_sub(self.now_ns) as i64);
    }

    /// Writes bytes whose number the reader has from elsewhere.
    pub fn raw(&mut self, bytes: &[u8]) {
        self.bytes.extend_from_slice(bytes);
    }

    /// Writes bytes with their number.
    pub fn bytes(&mut self, bytes: &[u8]) {
        self.put(bytes.len() as u32);
        self.raw(bytes);
    }

    /// Writes a list with its length.
    pub fn list<T>(
        &mut self,
        items: impl IntoIterator<Item = T, IntoIter: ExactSizeIterator>,
        mut each: impl FnMut(&mut Self, T),
    ) {
        let items = items.into_iter();
        self.put(items.len() as u32);
        items.for_each(|item| each(self, item));
    }

    /// Writes a value that may be absent.
    pub fn option<T>(&mut self, value: Option<T>, put: impl FnOnce(&mut Self, T)) {
        self.put(value.is_some());
        if let Some(value) = value {
            put(self, value);
        }
    }
}

/// Reader of a record, or of one part.
#[derive(Clone, Copy, Debug)]
pub struct Reader<'a> {
    rest: &'a [u8],
    now_ns: u64,
}

impl<'a> Reader<'a> {
    /// Creates the reader of a record that arrives at this time.
    pub fn new(bytes: &'a [u8], now_ns: u64) -> Self {
        Self { rest: bytes, now_ns }
    }

    /// Returns the bytes that are not read.
    pub fn rest(&mut self) -> &'a [u8] {
        std::mem::take(&mut self.rest)
    }

    /// Returns whether all fields are read.
    pub fn is_empty(&self) -> bool {
        self.rest.is_empty()
    }

    /// Reads the remaining parts. `each` gets the tag and the fields of one, and returns whether it has the tag.
    pub fn parts(
        mut self,
        mut each: impl FnMut(u16, Reader<'a>) -> Result<bool, RecordError>,
    ) -> Result<(), RecordError> {
        while !self.is_empty() {
            let (tag, flags) = (self.get::<u16>()?, self.get::<u16>()?);
            let fields = Self { rest: self.bytes(usize::MAX)?, now_ns: self.now_ns };
            if !each(tag, fields)? && flags & REQUIRED != 0 {
                return Err(RecordError::UnknownPart(tag));
            }
        }
        Ok(())
    }

    pub fn get<T: Field>(&mut self) -> Result<T, RecordError> {
        let bytes = self.raw(size_of::<T::Bytes>())?;
        let bytes = T::Bytes::try_from(bytes).map_err(|_| RecordError::Short)?;
        T::of_bytes(bytes).ok_or(RecordError::Invalid("flag"))
    }

    /// Reads a field of a later version, or returns its default at the end of an older part.
    pub fn get_or<T: Field>(&mut self, default: T) -> Result<T, RecordError> {
        if self.is_empty() { Ok(default) } else { self.get() }
    }

    /// Reads a number below a limit.
    pub fn below<T: Field + PartialOrd>(&mut self, limit: T, what: &'static str) -> Result<T, RecordError> {
        self.get()
            .and_then(|number| if number < limit { Ok(number) } else { Err(RecordError::Invalid(what)) })
    }

    /// Reads a point in time.
    pub fn time(&mut self) -> Result<u64, RecordError> {
        Ok(self.now_ns.saturating_add_signed(self.get()?))
    }

    /// Reads `count` bytes.
    pub fn raw(&mut self, count: usize) -> Result<&'a [u8], RecordError> {
        let (taken, rest) = self.rest.split_at_checked(count).ok_or(RecordError::Short)?;
        self.rest = rest;
        Ok(taken)
    }

    pub fn array<const N: usize>(&mut self) -> Result<[u8; N], RecordError> {
        self.raw(N)?.try_into().map_err(|_| RecordError::Short)
    }

    /// Reads bytes with their number, which is at most `most`.
    pub fn bytes(&mut self, most: usize) -> Result<&'a [u8], RecordError> {
        let count = self.get::<u32>()? as usize;
        if count > most { Err(RecordError::Invalid("length")) } else { self.raw(count) }
    }

    /// Reads a list of at most `most` entries.
    pub fn list<T>(
        &mut self,
        most: usize,
        mut each: impl FnMut(&mut Self) -> Result<T, RecordError>,
    ) -> Result<Vec<T>, RecordError> {
        let count = self.get::<u32>()? as usize;
        if count > most {
            return Err(RecordError::Invalid("length"));
        }
        let mut list = Vec::new();
        for _ in 0..count {
            list.push(each(self)?);
        }
        Ok(list)
    }

    /// Reads a value that may be absent.
    pub fn option<T>(
        &mut self,
        get: impl FnOnce(&mut Self) -> Result<T, RecordError>,
    ) -> Result<Option<T>, RecordError> {
        if self.get()? { get(self).map(Some) } else { Ok(None) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn record(need: Need) -> Vec<u8> {
        let mut writer = Writer::new(1000);
        writer.part(1, need, |part| {
            part.put(7u16);
            part.time(900);
            part.option(Some(true), Writer::put);
            part.option(None::<u8>, Writer::put);
            part.list([1u32, 2, 3], Writer::put);
            part.bytes(b"abc");
        });
        writer.part(2, Need::Optional, |part| part.put(1u8));
        writer.finish()
    }

    #[test]
    fn fields_come_back() {
        let bytes = record(Need::Required);
        let mut tags = Vec::new();
        let all = Reader::new(&bytes, 5000).parts(|tag, mut part| {
            tags.push(tag);
            if tag == 1 {
                assert_eq!((part.get(), part.time()), (Ok(7u16), Ok(4900)));
                assert_eq!(part.option(Reader::get), Ok(Some(true)));
                assert_eq!(part.option(Reader::get::<u8>), Ok(None));
                assert_eq!(part.list(3, Reader::get::<u32>), Ok(vec![1, 2, 3]));
                assert_eq!(part.bytes(3), Ok(&b"abc"[..]));
                assert_eq!(part.get_or(9u32), Ok(9), "a field of a later version");
                assert_eq!(part.get::<u8>(), Err(RecordError::Short));
            }
            Ok(tag == 1)
        });
        assert_eq!((all, tags), (Ok(()), vec![1, 2]));
    }

    #[test]
    fn only_optional_parts_are_skipped() {
        let read = |need| Reader::new(&record(need), 0).parts(|tag, _| Ok(tag == 2));
        assert_eq!(read(Need::Optional), Ok(()));
        assert_eq!(read(Need::Required), Err(RecordError::UnknownPart(1)));
    }

    #[test]
    fn limits_hold() {
        let mut huge = u32::MAX.to_le_bytes().to_vec();
        assert_eq!(Reader::new(&huge, 0).list(usize::MAX, Reader::get::<u8>), Err(RecordError::Short));
        assert_eq!(Reader::new(&huge, 0).list(4, Reader::get::<u8>), Err(RecordError::Invalid("length")));
        assert_eq!(Reader::new(&huge, 0).bytes(4), Err(RecordError::Invalid("length")));
        huge[0] = 2;
        assert_eq!(Reader::new(&huge, 0).get::<bool>(), Err(RecordError::Invalid("flag")));
        assert_eq!(Reader::new(&[8], 0).below(8u8, "number"), Err(RecordError::Invalid("number")));
        let early = i64::MIN.to_le_bytes();
        assert_eq!(Reader::new(&early, 5).time(), Ok(0), "no time is before the clock begins");
    }

    #[test]
    fn every_cut_is_noticed() {
        let bytes = record(Need::Required);
        for end in 1..bytes.len() {
            let mut parts = 0;
            let read = Reader::new(&bytes[..end], 0).parts(|_, _| {
                parts += 1;
                Ok(true)
            });
            assert!(read == Err(RecordError::Short) || read == Ok(()) && parts == 1, "{end}: {read:?}");
        }
    }
}

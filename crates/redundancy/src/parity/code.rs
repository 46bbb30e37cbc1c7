//! Arithmetic of P and Q: exclusive or, and multiplication in GF(2^8) modulo 0x11D with the generator 2.
//!
//! The loops work on eight bytes in a word, without tables and without branches on data, so that the compiler
//! turns them into vector instructions of the processor.

/// Words of a loop's turn: eight vectors of 16 bytes.
const LANES: usize = 16;
const TURN: usize = LANES * 8;

/// Bytes of each cell that are worked on together.
const TILE: usize = 2048;

/// Applies an operation on words to each word of `to` and `from`.
#[inline(always)]
fn each_word(to: &mut [u8], from: &[u8], operation: impl Fn(u64, u64) -> u64) {
    debug_assert_eq!(to.len(), from.len());
    let (to, to_rest) = to.as_chunks_mut::<TURN>();
    let (from, from_rest) = from.as_chunks::<TURN>();
    for (to, from) in to.iter_mut().zip(from) {
        for (to, from) in to.as_chunks_mut::<8>().0.iter_mut().zip(from.as_chunks::<8>().0) {
            *to = operation(u64::from_ne_bytes(*to), u64::from_ne_bytes(*from)).to_ne_bytes();
        }
    }
    for (to, from) in to_rest.as_chunks_mut::<8>().0.iter_mut().zip(from_rest.as_chunks::<8>().0) {
        *to = operation(u64::from_ne_bytes(*to), u64::from_ne_bytes(*from)).to_ne_bytes();
    }
}

/// Multiplies each byte of a word by 2.
#[inline(always)]
fn double(word: u64) -> u64 {
    // All bits of the bytes whose highest bit is set. Vector units have no product of 64 bits.
    let carry = word >> 7 & 0x0101_0101_0101_0101;
    let mask = (carry << 8).wrapping_sub(carry);
    (word << 1 & 0xfefe_fefe_fefe_fefe) ^ mask & 0x1d1d_1d1d_1d1d_1d1d
}

/// Multiplies each byte of a word by a constant.
#[inline(always)]
fn times(word: u64, factor: u8) -> u64 {
    let mut product = 0;
    for bit in (0..8).rev() {
        let mask = 0u64.wrapping_sub(u64::from(factor >> bit & 1));
        product = double(product) ^ word & mask;
    }
    product
}

/// Adds `from` to `to`.
pub(super) fn add(to: &mut [u8], from: &[u8]) {
    each_word(to, from, |to, from| to ^ from);
}

/// Adds `from` times a constant to `to`.
pub(super) fn add_times(to: &mut [u8], from: &[u8], factor: u8) {
    match factor {
        1 => add(to, from),
        2 => each_word(to, from, |to, from| to ^ double(from)),
        4 => each_word(to, from, |to, from| to ^ double(double(from))),
        8 => each_word(to, from, |to, from| to ^ double(double(double(from)))),
        _ => each_word(to, from, |to, from| to ^ times(from, factor)),
    }
}

/// Doubles `to`, and adds `from`.
pub(super) fn double_add(to: &mut [u8], from: &[u8]) {
    each_word(to, from, |to, from| double(to) ^ from);
}

/// Multiplies all bytes by a constant.
pub(super) fn scale(bytes: &mut [u8], factor: u8) {
    for word in bytes.as_chunks_mut::<8>().0 {
        *word = times(u64::from_ne_bytes(*word), factor).to_ne_bytes();
    }
}

/// Returns the product of two numbers.
pub(super) fn product(one: u8, other: u8) -> u8 {
    times(one.into(), other) as u8
}

/// Returns the generator's power.
pub(super) fn power(exponent: usize) -> u8 {
    (0..exponent % 255).fold(1, |power, _| product(power, 2))
}

/// Returns the inverse of a number that is not zero.
pub(super) fn inverse(number: u8) -> u8 {
    // The group has 255 elements, so x^254 is the inverse.
    let mut inverse = 1;
    for bit in (0..8).rev() {
        inverse = product(inverse, inverse);
        if 254 >> bit & 1 == 1 {
            inverse = product(inverse, number);
        }
    }
    inverse
}

/// Cells of a rectangle's roles in one buffer: the data columns, then the parities. All have as many bytes.
#[derive(Debug)]
pub(super) struct Cells<'a> {
    bytes: &'a mut [u8],
    length: usize,
    columns: usize,
    parities: usize,
}

impl<'a> Cells<'a> {
    /// Divides a buffer into the cells. Returns none if it is too short.
    pub(super) fn new(bytes: &'a mut [u8], length: usize, columns: usize, parities: usize) -> Option<Self> {
        let bytes = bytes.get_mut(..length * (columns + parities))?;
        Some(Self { bytes, length, columns, parities })
    }

    pub(super) fn cell(&mut self, role: usize) -> &mut [u8] {
        &mut self.bytes[role * self.length..][..self.length]
    }

    /// Returns two different cells.
    fn two(&mut self, to: usize, from: usize) -> (&mut [u8], &[u8]) {
        let length = self.length;
        match to < from {
            true => {
                let (low, high) = self.bytes.split_at_mut(from * length);
                (&mut low[to * length..][..length], &high[..length])
            }
            false => {
                let (low, high) = self.bytes.split_at_mut(to * length);
                (&mut high[..length], &low[from * length..][..length])
            }
        }
    }

    fn roles(&self) -> usize {
        self.columns + self.parities
    }

    /// Adds a data column to the parities `which`, a mask of roles.
    pub(super) fn fold(&mut self, column: usize, which: u32) {
        for role in self.columns..self.roles() {
            if which >> role & 1 == 1 {
                let factor = if role == self.columns { 1 } else { power(column) };
                let (to, from) = self.two(role, column);
                add_times(to, from, factor);
            }
        }
    }

    /// Computes all parities from all data columns.
    pub(super) fn encode(&mut self) {
        let (columns, length) = (self.columns, self.length);
        // Tiles stay in the processor's first cache for all columns.
        for start in (0..length).step_by(TILE) {
            let tile = start..(start + TILE).min(length);
            for role in columns..self.roles() {
                let last = (columns - 1) * length;
                self.bytes.copy_within(last + tile.start..last + tile.end, role * length + tile.start);
                for column in (0..columns - 1).rev() {
                    let (to, from) = self.two(role, column);
                    let (to, from) = (&mut to[tile.clone()], &from[tile.clone()]);
                    if role == columns { add(to, from) } else { double_add(to, from) }
                }
            }
        }
    }

    /// Computes the cells that are missing, a mask of roles. At most as many are missing as there are
    /// parities.
    pub(super) fn recover(&mut self, missing: u32) {
        let (p, q) = (self.columns, self.columns + 1);
        let mut lost = (0..self.columns).filter(|column| missing >> column & 1 == 1);
        match (lost.next(), lost.next()) {
            (None, _) => {}
            (Some(x), None) if missing >> p & 1 == 0 => {
                self.copy(p, x);
                for column in (0..self.columns).filter(|column| *column != x) {
                    let (to, from) = self.two(x, column);
                    add(to, from);
                }
            }
            (Some(x), None) => {
                self.copy(q, x);
                for column in (0..self.columns).filter(|column| *column != x) {
                    let (to, from) = self.two(x, column);
                    add_times(to, from, power(column));
                }
                scale(self.cell(x), inverse(power(x)));
            }
            (Some(x), Some(y)) => self.recover_two(x, y),
        }
        if missing >> self.columns != 0 {
            self.encode();
        }
    }

    /// Computes two data columns from P and Q.
    fn recover_two(&mut self, x: usize, y: usize) {
        let (p, q) = (self.columns, self.columns + 1);
        // Cell x becomes P without the other columns: Dx + Dy. Cell y becomes Q without them: g^x Dx + g^y Dy.
        self.copy(p, x);
        self.copy(q, y);
        for column in (0..self.columns).filter(|column| *column != x && *column != y) {
            let (to, from) = self.two(x, column);
            add(to, from);
            let (to, from) = self.two(y, column);
            add_times(to, from, power(column));
        }
        // g^y (Dx + Dy) + (g^x Dx + g^y Dy) = (g^x + g^y) Dx, so Dx comes into cell y.
        let (to, from) = self.two(y, x);
        add_times(to, from, power(y));
        scale(self.cell(y), inverse(power(x) ^ power(y)));
        // Cell x: Dx + Dy without Dx is Dy.
        let (to, from) = self.two(x, y);
        add(to, from);
        self.swap(x, y);
    }

    fn copy(&mut self, from: usize, to: usize) {
        self.bytes.copy_within(from * self.length..(from + 1) * self.length, to * self.length);
    }

    fn swap(&mut self, one: usize, other: usize) {
        let (low, high) = (one.min(other), one.max(other));
        let (first, second) = self.bytes.split_at_mut(high * self.length);
        first[low * self.length..][..self.length].swap_with_slice(&mut second[..self.length]);
    }

    /// Adds all data columns to the parities, which are zeros then if all cells belong together. Returns
    /// whether they are.
    pub(super) fn check(&mut self) -> bool {
        let all = ((1 << self.parities) - 1) << self.columns;
        (0..self.columns).for_each(|column| self.fold(column, all));
        self.bytes[self.columns * self.length..].iter().all(|byte| *byte == 0)
    }

    /// Returns the only role that explains the syndromes that [`check`](Self::check) has left; none if there
    /// is no such role, or only one parity.
    pub(super) fn blame(&mut self) -> Option<usize> {
        let (p, q) = (self.columns, self.columns + 1);
        if self.parities < 2 {
            return None;
        }
        let is_zero = |cell: &[u8]| cell.iter().all(|byte| *byte == 0);
        match (is_zero(self.cell(p)), is_zero(self.cell(q))) {
            (true, true) => return None,
            (true, false) => return Some(q),
            (false, true) => return Some(p),
            (false, false) => {}
        }
        let length = self.length;
        let (first, second) = self.bytes[p * length..].split_at(length);
        (0..self.columns).find(|column| {
            let factor = power(*column);
            first.iter().zip(second).all(|(p, q)| product(*p, factor) == *q)
        })
    }

    /// Corrects a data column after [`check`](Self::check) and [`blame`](Self::blame): the syndrome of P is its
    /// error.
    pub(super) fn correct(&mut self, column: usize) {
        let (to, from) = self.two(column, self.columns);
        add(to, from);
    }
}

//! Places of data and parity on the members: the layout *left-symmetric* of Linux md.
//!
//! A *stripe* is one chunk of each member, at the same offset. Its *roles* are the data columns from 0 on,
//! then P, and Q of two parities. A *row range* is some bytes of a member; all chunks of a stripe have the
//! same one.
//!
//! An array with one parity that gets another keeps the places of its data and of P, and has Q on one more
//! member, as in *left-symmetric-6* of Linux md. The coefficients of Q differ from those there.

use std::ops::Range;

/// Unit of chunks, bytes: a multiple of every block size.
pub(super) const CHUNK_UNIT: u64 = 4096;

/// Limits of a chunk, bytes.
pub(super) const CHUNK_MIN: u64 = 4096;
pub(super) const CHUNK_MAX: u64 = 1 << 20;

/// Shape of an array.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Geometry {
    pub members: usize,
    /// Number of parities: 1 (RAID-5) or 2 (RAID-6).
    pub parities: usize,
    /// Bytes of a chunk, a multiple of `CHUNK_UNIT`.
    pub chunk: u64,
    /// Whether Q is on the last member in all stripes, and the other members are an array with one parity.
    pub q_is_last: bool,
}

impl Geometry {
    /// Creates the shape.
    ///
    /// # Errors
    /// Returns a message if there is no such array.
    pub fn new(members: usize, parities: usize, chunk: u64) -> Result<Self, String> {
        if !(1..=2).contains(&parities) {
            return Err(format!("parity is 1 or 2, not {parities}"));
        }
        if members < parities + 2 {
            return Err(format!("parity = {parities} needs {} members, and has {members}", parities + 2));
        }
        if !(CHUNK_MIN..=CHUNK_MAX).contains(&chunk) || !chunk.is_multiple_of(CHUNK_UNIT) {
            return Err("chunk is a multiple of 4KiB, from 4KiB to 1MiB".to_owned());
        }
        Ok(Self { members, parities, chunk, q_is_last: false })
    }

    /// Returns the shape with Q on one more member, and data and P where they are. None if there is a Q.
    pub fn with_q(self) -> Option<Self> {
        (self.parities == 1).then_some(Self {
            members: self.members + 1,
            parities: 2,
            q_is_last: true,
            ..self
        })
    }

    /// Returns the shape without the member that has only Q. None if there is no such member.
    pub fn without_q(self) -> Option<Self> {
        self.q_is_last.then_some(Self { members: self.members - 1, parities: 1, q_is_last: false, ..self })
    }

    /// Returns the number of data columns.
    pub fn columns(&self) -> usize {
        self.members - self.parities
    }

    /// Returns the bytes of the drive with members of so many bytes.
    pub fn drive_bytes(&self, member_bytes: u64) -> u64 {
        (member_bytes / self.chunk * self.chunk).saturating_mul(self.columns() as u64)
    }

    /// Returns the bytes of data in a stripe.
    pub fn stripe_bytes(&self) -> u64 {
        self.chunk * self.columns() as u64
    }

    /// Returns the member with a role in a stripe.
    pub fn member(&self, stripe: u64, role: usize) -> usize {
        let columns = self.columns();
        let (members, parities) = match self.q_is_last {
            true if role > columns => return self.members - 1,
            true => (self.members - 1, 1),
            false => (self.members, self.parities),
        };
        let first = members - 1 - (stripe % members as u64) as usize;
        match role.checked_sub(columns) {
            Some(parity) => (first + parity) % members,
            None => (first + parities + role) % members,
        }
    }

    /// Returns the stripe, the column and the offset in the member of a byte of the drive.
    pub fn place(&self, offset: u64) -> (u64, usize, u64) {
        let (stripe, within) = (offset / self.stripe_bytes(), offset % self.stripe_bytes());
        (stripe, (within / self.chunk) as usize, stripe * self.chunk + within % self.chunk)
    }

    /// Returns the offset on the drive of the byte at `row` of a member, in a column.
    pub fn drive_offset(&self, row: u64, column: usize) -> u64 {
        row / self.chunk * self.stripe_bytes() + column as u64 * self.chunk + row % self.chunk
    }

    /// Returns the end of the run from `offset` to `end` that lies in one chunk.
    pub fn chunk_end(&self, offset: u64, end: u64) -> u64 {
        (offset / self.chunk + 1).saturating_mul(self.chunk).min(end)
    }
}

/// Rows of a member, in some adjacent data columns.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Rect {
    /// Bytes of each member.
    pub rows: Range<u64>,
    pub columns: Range<usize>,
}

impl Rect {
    pub(super) fn length(&self) -> u64 {
        self.rows.end - self.rows.start
    }
}

/// Division of a range of the drive into rectangles of at most `rows_max` rows in one stripe and one region.
#[derive(Clone, Debug)]
pub(super) struct Cut {
    left: Range<u64>,
    /// Rectangles of the present stripe that are still to be returned, the last first.
    bands: [Option<Rect>; 3],
    rows_max: u64,
    /// Whether several whole stripes are one rectangle: for zeros.
    whole: bool,
}

/// Maximum rows of a rectangle of zeros, bytes.
const ZEROES_MAX: u64 = 256 << 20;

impl Cut {
    pub(super) fn new(range: Range<u64>, rows_max: u64, whole: bool) -> Self {
        Self { left: range, bands: [None, None, None], rows_max, whole }
    }

    /// Returns the next rectangle. It lies in one region of `region` bytes, unless it is several whole stripes: a region
    /// that is rebuilt again would lack the part of its parities behind the border.
    pub(super) fn next(&mut self, geometry: &Geometry, region: u64) -> Option<Rect> {
        loop {
            if let Some(band) = self.bands.iter_mut().rev().find(|band| band.is_some()) {
                let rect = band.as_mut()?;
                let is_run = self.whole && rect.columns == (0..geometry.columns());
                let rows_max = if is_run { ZEROES_MAX } else { self.rows_max };
                let border = if is_run { u64::MAX } else { (rect.rows.start / region + 1) * region };
                let end = (rect.rows.start + rows_max).min(rect.rows.end).min(border);
                let next = Rect { rows: rect.rows.start..end, columns: rect.columns.clone() };
                rect.rows.start = end;
                if rect.rows.is_empty() {
                    *band = None;
                }
                return Some(next);
            }
            if self.left.is_empty() {
                return None;
            }
            self.take_stripe(geometry);
        }
    }

    /// Divides the next stripe into up to three bands of rows, each with adjacent columns.
    fn take_stripe(&mut self, geometry: &Geometry) {
        let (bytes, chunk) = (geometry.stripe_bytes(), geometry.chunk);
        let stripe = self.left.start / bytes;
        let at = stripe * bytes;
        let stripes = (self.left.end - at) / bytes;
        if self.whole && self.left.start == at && stripes > 1 {
            let rows = stripe * chunk..(stripe + stripes) * chunk;
            self.left.start = at + stripes * bytes;
            self.bands[0] = Some(Rect { rows, columns: 0..geometry.columns() });
            return;
        }
        let (from, to) = (self.left.start - at, self.left.end.min(at + bytes) - at);
        self.left.start = at + to;
        let (first, row) = ((from / chunk) as usize, from % chunk);
        let (last, row_end) = (((to - 1) / chunk) as usize, (to - 1) % chunk + 1);
        let base = stripe * chunk;
        let cuts = [0, row.min(row_end), row.max(row_end), chunk];
        for (number, band) in self.bands.iter_mut().enumerate() {
            let (low, high) = (cuts[number], cuts[number + 1]);
            let begin = if low >= row { first } else { first + 1 };
            let end = if high <= row_end { last + 1 } else { last };
            let rect = Rect { rows: base + low..base + high, columns: begin..end };
            *band = (low < high && begin < end).then_some(rect);
        }
    }
}

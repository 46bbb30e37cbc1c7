//! The fuzzer's bytes, taken one decision at a time.

/// Rest of an input. All values beyond its end are zero, so every input has a meaning.
#[derive(Debug)]
pub struct Input<'a> {
    rest: &'a [u8],
}

impl<'a> Input<'a> {
    pub fn new(data: &'a [u8]) -> Self {
        Self { rest: data }
    }

    pub fn is_empty(&self) -> bool {
        self.rest.is_empty()
    }

    /// Returns the next bytes, fewer at the end.
    pub fn bytes(&mut self, count: usize) -> &'a [u8] {
        let (now, later) = self.rest.split_at(count.min(self.rest.len()));
        self.rest = later;
        now
    }

    fn array<const N: usize>(&mut self) -> [u8; N] {
        let taken = self.bytes(N);
        let mut array = [0; N];
        array[..taken.len()].copy_from_slice(taken);
        array
    }

    pub fn byte(&mut self) -> u8 {
        self.array::<1>()[0]
    }

    pub fn u16(&mut self) -> u16 {
        u16::from_le_bytes(self.array())
    }

    pub fn u32(&mut self) -> u32 {
        u32::from_le_bytes(self.array())
    }

    pub fn u64(&mut self) -> u64 {
        u64::from_le_bytes(self.array())
    }

    /// Returns a number less than `bound`, which is 1 to 256.
    pub fn below(&mut self, bound: usize) -> usize {
        usize::from(self.byte()) % bound
    }

    /// Returns true once in `times` cases; never at the end of the input.
    pub fn one_in(&mut self, times: usize) -> bool {
        self.below(times) == times - 1
    }

    pub fn pick<T: Copy>(&mut self, from: &[T]) -> T {
        from[self.below(from.len())]
    }

    /// Returns a dword as protocols have them: zero, a small value, two small values, an edge, anything.
    pub fn dword(&mut self) -> u32 {
        match self.below(8) {
            0 => 0,
            1 | 2 => self.byte().into(),
            3 | 4 => u32::from(self.byte()) | u32::from(self.byte()) << 16,
            5 => self.u16().into(),
            6 => self.pick(&[1 << 31, u32::MAX, u32::MAX - 1, 0xffff, 0xffff_0000, 1 << 30, 4096, 4095]),
            _ => self.u32(),
        }
    }
}

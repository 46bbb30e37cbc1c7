//! Sequential reads, which bypass the cache.

/// Streams that are followed at a time.
const STREAMS: usize = 16;

/// Bytes that a stream reads before it bypasses.
const SEQUENTIAL: u64 = 256 << 10;

#[derive(Clone, Copy, Debug, Default)]
struct Stream {
    /// Offset of the next read.
    next: u64,
    bytes: u64,
}

#[derive(Debug, Default)]
pub(super) struct Streams {
    streams: [Stream; STREAMS],
    /// Stream that the next new one replaces.
    oldest: usize,
}

impl Streams {
    /// Notes a read; returns whether it belongs to a long sequence.
    pub(super) fn note(&mut self, offset: u64, length: u64) -> bool {
        let end = offset.saturating_add(length);
        let known = self.streams.iter_mut().find(|stream| stream.bytes > 0 && stream.next == offset);
        if let Some(stream) = known {
            stream.next = end;
            stream.bytes = stream.bytes.saturating_add(length);
            return stream.bytes > SEQUENTIAL;
        }
        self.streams[self.oldest] = Stream { next: end, bytes: length.max(1) };
        self.oldest = (self.oldest + 1) % STREAMS;
        false
    }
}

//! Sequential accesses, which bypass a cache.

/// Streams that are followed at a time.
const STREAMS: usize = 16;

#[derive(Clone, Copy, Debug, Default)]
struct Stream {
    /// Offset of the next access.
    next: u64,
    bytes: u64,
}

#[derive(Debug)]
pub(crate) struct Streams {
    /// Bytes of a stream before it bypasses.
    limit: u64,
    streams: [Stream; STREAMS],
    /// Stream that the next new one replaces.
    oldest: usize,
}

impl Streams {
    /// Follows streams that bypass after so many bytes.
    pub(crate) fn new(limit: u64) -> Self {
        Self { limit, streams: Default::default(), oldest: 0 }
    }

    /// Notes an access; returns whether it belongs to a long sequence.
    pub(crate) fn note(&mut self, offset: u64, length: u64) -> bool {
        let end = offset.saturating_add(length);
        let known = self.streams.iter_mut().find(|stream| stream.bytes > 0 && stream.next == offset);
        if let Some(stream) = known {
            stream.next = end;
            stream.bytes = stream.bytes.saturating_add(length);
            return stream.bytes > self.limit;
        }
        self.streams[self.oldest] = Stream { next: end, bytes: length.max(1) };
        self.oldest = (self.oldest + 1) % STREAMS;
        false
    }
}

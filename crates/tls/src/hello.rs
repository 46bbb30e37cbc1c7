//! Offers of a ClientHello (RFC 8446 4.1.2 and 4.2.11): the names of keys, each with its binder.

/// The pre-shared keys of a ClientHello.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Offers<'a> {
    /// Each with its binder, in the client's order.
    pub(crate) keys: Vec<(&'a [u8], &'a [u8])>,
    /// Bytes that the binders cover: the message up to them.
    pub(crate) bound: &'a [u8],
}

/// Keys of one ClientHello that are looked at; those beyond are not there.
const KEYS_MAX: usize = 8;

const PRE_SHARED_KEY: u16 = 41;

/// Reads a ClientHello without the header of the handshake message. `None` if it is none, or offers no keys.
pub(crate) fn offers(hello: &[u8]) -> Option<Offers<'_>> {
    const VERSION_AND_RANDOM: usize = 2 + 32;
    let mut rest = Reader(hello);
    rest.take(VERSION_AND_RANDOM)?;
    rest.vector::<1>()?;
    rest.vector::<2>()?;
    rest.vector::<1>()?;
    let mut extensions = Reader(rest.vector::<2>()?);
    while !extensions.0.is_empty() {
        let kind = extensions.number::<2>()?;
        let body = extensions.vector::<2>()?;
        if kind == usize::from(PRE_SHARED_KEY) {
            // The extension has to be the last, since its binders cover everything before them.
            return extensions.0.is_empty().then(|| keys(hello, body))?;
        }
    }
    None
}

fn keys<'a>(hello: &'a [u8], body: &'a [u8]) -> Option<Offers<'a>> {
    let mut rest = Reader(body);
    let mut identities = Reader(rest.vector::<2>()?);
    let bound = &hello[..hello.len() - rest.0.len()];
    let mut binders = Reader(rest.vector::<2>()?);
    let mut keys = Vec::new();
    while keys.len() < KEYS_MAX && !identities.0.is_empty() {
        let identity = identities.vector::<2>()?;
        // The age of a ticket, which an external key has not.
        identities.take(4)?;
        keys.push((identity, binders.vector::<1>()?));
    }
    rest.0.is_empty().then_some(Offers { keys, bound })
}

/// Unread bytes.
struct Reader<'a>(&'a [u8]);

impl<'a> Reader<'a> {
    fn take(&mut self, count: usize) -> Option<&'a [u8]> {
        let (taken, rest) = self.0.split_at_checked(count)?;
        self.0 = rest;
        Some(taken)
    }

    /// Reads a number of `BYTES` bytes.
    fn number<const BYTES: usize>(&mut self) -> Option<usize> {
        Some(self.take(BYTES)?.iter().fold(0, |number, byte| number << 8 | usize::from(*byte)))
    }

    /// Reads bytes that follow their count, which has `BYTES` bytes.
    fn vector<const BYTES: usize>(&mut self) -> Option<&'a [u8]> {
        let count = self.number::<BYTES>()?;
        self.take(count)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn vector(bytes: usize, content: &[u8]) -> Vec<u8> {
        let length = (content.len() as u32).to_be_bytes();
        [&length[4 - bytes..], content].concat()
    }

    fn hello(keys: &[(&[u8], &[u8])], behind: &[u8]) -> Vec<u8> {
        let identities: Vec<u8> =
            keys.iter().flat_map(|(id, _)| [vector(2, id), vec![0; 4]].concat()).collect();
        let binders: Vec<u8> = keys.iter().flat_map(|(_, binder)| vector(1, binder)).collect();
        let body = [vector(2, &identities), vector(2, &binders)].concat();
        let other = [&[0, 43][..], &vector(2, &[2, 3, 4])].concat();
        let extensions = [&other[..], &[0, 41], &vector(2, &body), behind].concat();
        [&[3; 34][..], &vector(1, &[1; 32]), &vector(2, &[19, 1]), &vector(1, &[0]), &vector(2, &extensions)]
            .concat()
    }

    #[test]
    fn keys_are_found_with_their_binders() {
        let keys: [(&[u8], &[u8]); 2] = [(b"one", &[1; 32]), (b"two", &[2; 48])];
        let bytes = hello(&keys, &[]);
        let found = offers(&bytes).expect("it offers keys");
        assert_eq!(found.keys, keys);
        let binders = vector(2, &[vector(1, &[1; 32]), vector(1, &[2; 48])].concat());
        assert_eq!(found.bound, &bytes[..bytes.len() - binders.len()]);
    }

    #[test]
    fn keys_stand_last() {
        assert_eq!(offers(&hello(&[(b"one", &[1; 32])], &[0, 43, 0, 0])), None);
    }

    proptest! {
        /// Truncates and changes messages: nothing beyond their end is read.
        #[test]
        fn damage_does_no_harm(at in 0usize..200, byte: u8, end in 0usize..200) {
            let mut bytes = hello(&[(b"one", &[1; 32]), (b"two", &[2; 32])], &[]);
            let count = bytes.len();
            bytes[at % count] = byte;
            bytes.truncate(count - end % count);
            if let Some(found) = offers(&bytes) {
                prop_assert!(found.bound.len() < bytes.len());
                prop_assert!(found.keys.len() <= KEYS_MAX);
            }
        }
    }
}

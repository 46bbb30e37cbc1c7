//! Tests of sessions with any content, in any division of the stream, and with any change in transit.

use super::*;
use proptest::collection::vec;
use proptest::prelude::*;

/// Sent record of one end: content, or a KeyUpdate.
type Said = Option<Vec<u8>>;

/// Change of a record in transit.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Way {
    Changed,
    Missing,
    Twice,
}

/// Seals a record for each sent item.
fn records(from: &mut Session, said: &[Said]) -> Vec<Vec<u8>> {
    let record = |said: &Said| match said {
        Some(content) => from.seal(content.len(), |room| room.copy_from_slice(content)).to_vec(),
        None => from.update(false),
    };
    said.iter().map(record).collect()
}

fn content(said: &[Said]) -> Vec<u8> {
    said.iter().flatten().flatten().copied().collect()
}

/// Receives a stream in these pieces; returns the content, and the result.
fn hear(to: &mut Session, mut bytes: &[u8], pieces: &[usize]) -> (Vec<u8>, Result<(), Failure>) {
    let (mut heard, mut pieces) = (Vec::new(), pieces.iter());
    while !bytes.is_empty() {
        let room = to.room();
        let count = room.len().min(bytes.len()).min(*pieces.next().unwrap_or(&usize::MAX));
        room[..count].copy_from_slice(&bytes[..count]);
        bytes = &bytes[count..];
        if let Err(failure) = to.filled(count) {
            return (heard, Err(failure));
        }
        heard.extend_from_slice(to.content());
        to.take(to.content().len());
    }
    (heard, Ok(()))
}

fn anything_said() -> impl Strategy<Value = Vec<Said>> {
    let content = prop_oneof![4 => 0usize..200, 1 => Just(Session::CONTENT_MAX)];
    let content = (content, any::<u8>()).prop_map(|(length, byte)| Some(vec![byte; length]));
    vec(prop_oneof![4 => content, 1 => Just(None)], 1..12)
}

fn any_hash() -> impl Strategy<Value = Hash> {
    prop_oneof![Just(Hash::Sha256), Just(Hash::Sha384)]
}

/// Counts records without content; content allows further ones.
#[test]
fn endless_records_without_content_end_it() {
    for nothing in [Some(Vec::new()), None] {
        let (mut from, mut to) = Session::pair(Hash::Sha256);
        let many: Vec<Said> = vec![nothing; 33];
        let mut stream = records(&mut from, &many[..32]).concat();
        let much: Vec<Said> = vec![Some(vec![1; Session::CONTENT_MAX]); 4];
        stream.extend(records(&mut from, &much).concat());
        stream.extend(records(&mut from, &many[..1]).concat());
        let (heard, all_is_well) = hear(&mut to, &stream, &[]);
        assert_eq!((heard.len(), all_is_well), (4 * Session::CONTENT_MAX, Ok(())));
        stream = records(&mut from, &many[..1]).concat();
        assert_eq!(hear(&mut to, &stream, &[]).1, Err(Failure::UNEXPECTED_MESSAGE));
    }
}

proptest! {
    #[test]
    fn what_is_said_is_heard(hash in any_hash(), said in anything_said(), pieces in vec(1usize..300, 0..40)) {
        let (mut from, mut to) = Session::pair(hash);
        let stream = records(&mut from, &said).concat();
        prop_assert_eq!(hear(&mut to, &stream, &pieces), (content(&said), Ok(())));
    }

    /// Ends with a changed byte, a missing record, or a repeated one.
    #[test]
    fn what_was_changed_is_not_heard(
        said in anything_said(), number: usize, at: usize, change in 1u8.., pieces in vec(1usize..300, 0..40),
    ) {
        let number = number % said.len();
        for way in [Way::Changed, Way::Missing, Way::Twice] {
            let (mut from, mut to) = Session::pair(Hash::Sha256);
            let mut stream = records(&mut from, &said);
            match way {
                Way::Changed => {
                    let at = at % stream[number].len();
                    stream[number][at] ^= change;
                }
                Way::Missing => drop(stream.remove(number)),
                Way::Twice => stream.insert(number, stream[number].clone()),
            }
            let heard = hear(&mut to, &stream.concat(), &pieces).0;
            let whole = if way == Way::Twice { number + 1 } else { number };
            prop_assert_eq!(heard, content(&said[..whole]));
        }
    }

    /// Sends any record with the right key, valid or not.
    #[test]
    fn messages_of_every_kind_do_no_harm(kind in 20u8..25, message in vec(prop_oneof![0u8..30, any::<u8>()], 0..40)) {
        let (mut from, mut to) = Session::pair(Hash::Sha256);
        let record = from.seal_any(kind, &message, 0);
        let (heard, ended) = hear(&mut to, &record, &[]);
        prop_assert!(heard.is_empty() || kind == Kind::DATA.0 && heard == message);
        if let Err(failure) = ended {
            prop_assert!(kind != Kind::DATA.0 && !failure.to_string().is_empty());
        }
    }
}

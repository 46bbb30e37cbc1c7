//! Tests of sessions with any content, in any division of the stream, and with any change in transit.

use super::*;
use proptest::collection::vec;
use proptest::prelude::*;

/// Sent record of one end: content, or a KeyUpdate.
type Sent = Option<Vec<u8>>;

/// Change of a record in transit.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Damage {
    Changed,
    Missing,
    Twice,
}

/// Seals a record for each sent item.
fn records(from: &mut Session, sent: &[Sent]) -> Vec<Vec<u8>> {
    let record = |sent: &Sent| match sent {
        Some(content) => from.seal(content.len(), |room| room.copy_from_slice(content)).to_vec(),
        None => from.update(false),
    };
    sent.iter().map(record).collect()
}

fn content(sent: &[Sent]) -> Vec<u8> {
    sent.iter().flatten().flatten().copied().collect()
}

/// Receives a stream in these pieces; returns the content, and the result.
fn receive(to: &mut Session, mut bytes: &[u8], pieces: &[usize]) -> (Vec<u8>, Result<(), Failure>) {
    let (mut received, mut pieces) = (Vec::new(), pieces.iter());
    while !bytes.is_empty() {
        let room = to.room();
        let count = room.len().min(bytes.len()).min(*pieces.next().unwrap_or(&usize::MAX));
        room[..count].copy_from_slice(&bytes[..count]);
        bytes = &bytes[count..];
        if let Err(failure) = to.filled(count) {
            return (received, Err(failure));
        }
        received.extend_from_slice(to.content());
        to.take(to.content().len());
    }
    (received, Ok(()))
}

fn any_records() -> impl Strategy<Value = Vec<Sent>> {
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
        let many: Vec<Sent> = vec![nothing; 33];
        let mut stream = records(&mut from, &many[..32]).concat();
        let much: Vec<Sent> = vec![Some(vec![1; Session::CONTENT_MAX]); 4];
        stream.extend(records(&mut from, &much).concat());
        stream.extend(records(&mut from, &many[..1]).concat());
        let (received, all_is_well) = receive(&mut to, &stream, &[]);
        assert_eq!((received.len(), all_is_well), (4 * Session::CONTENT_MAX, Ok(())));
        stream = records(&mut from, &many[..1]).concat();
        assert_eq!(receive(&mut to, &stream, &[]).1, Err(Failure::UNEXPECTED_MESSAGE));
    }
}

proptest! {
    #[test]
    fn sent_records_are_received(hash in any_hash(), sent in any_records(), pieces in vec(1usize..300, 0..40)) {
        let (mut from, mut to) = Session::pair(hash);
        let stream = records(&mut from, &sent).concat();
        prop_assert_eq!(receive(&mut to, &stream, &pieces), (content(&sent), Ok(())));
    }

    /// Ends with a changed byte, a missing record, or a repeated one.
    #[test]
    fn damaged_records_end_the_session(
        sent in any_records(), number: usize, at: usize, change in 1u8.., pieces in vec(1usize..300, 0..40),
    ) {
        let number = number % sent.len();
        for damage in [Damage::Changed, Damage::Missing, Damage::Twice] {
            let (mut from, mut to) = Session::pair(Hash::Sha256);
            let mut stream = records(&mut from, &sent);
            match damage {
                Damage::Changed => {
                    let at = at % stream[number].len();
                    stream[number][at] ^= change;
                }
                Damage::Missing => drop(stream.remove(number)),
                Damage::Twice => stream.insert(number, stream[number].clone()),
            }
            let received = receive(&mut to, &stream.concat(), &pieces).0;
            let whole = if damage == Damage::Twice { number + 1 } else { number };
            prop_assert_eq!(received, content(&sent[..whole]));
        }
    }

    /// Sends any record with the right key, valid or not.
    #[test]
    fn messages_of_every_kind_do_no_harm(kind in 20u8..25, message in vec(prop_oneof![0u8..30, any::<u8>()], 0..40)) {
        let (mut from, mut to) = Session::pair(Hash::Sha256);
        let record = from.seal_any(kind, &message, 0);
        let (received, ended) = receive(&mut to, &record, &[]);
        prop_assert!(received.is_empty() || kind == Kind::DATA.0 && received == message);
        if let Err(failure) = ended {
            prop_assert!(kind != Kind::DATA.0 && !failure.to_string().is_empty());
        }
    }
}

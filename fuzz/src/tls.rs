//! Bytes of a peer over TLS, and before: records, files of keys, the beginning of a handshake. No data is
//! received without the key, and received data does not depend on how it is cut.

use crate::Input;
use crate::tcp::Reader;
use rustix::net::{AddressFamily, SendFlags, Shutdown, SocketFlags, SocketType, send, shutdown, socketpair};
use sluice_memory::{Segment, SharedRegion};
use sluice_nvme_tcp::{Digests, Role};
use sluice_tls::{Failure, Handshake, Hash, Identity, Keys, Session, Stream, rig};
use std::os::fd::AsFd;
use std::sync::Arc;
use std::task::Poll;

const HOST: &str = "nqn.host";
const SUBSYSTEM: &str = "nqn.subsystem";

/// A key of each length, one for all hosts and one for a single host.
const KEYS: &str = "\
NVMeTLSkey-1:01:AAECAwQFBgcICQoLDA0ODxAREhMUFRYXGBkaGxwdHh+KfiaR:
nqn.other NVMeTLSkey-1:02:AAECAwQFBgcICQoLDA0ODxAREhMUFRYXGBkaGxwdHh8gISIjJCUmJygpKissLS4vcSEgBQ==:
";

/// Bytes of content of a record, and of its other fields at most.
const CONTENT_MAX: usize = Session::CONTENT_MAX;
const BODY_MAX: usize = CONTENT_MAX + 256;
const TAG: usize = 16;
const HEADER: usize = 5;

/// Messages of one conversation.
const PARTS: usize = 64;

pub fn run(data: &[u8]) {
    let mut input = Input::new(data);
    match input.below(8) {
        0 => read_keys(input.bytes(usize::MAX)),
        1 => read_hello(&mut input),
        2 => shake_hands(&mut input),
        3 => stream_in(&mut input),
        4 => stream_out(&mut input),
        _ => converse(&mut input),
    }
}

/// Reads a file of keys: it is refused with its line and a reason, or its keys are found by their names.
fn read_keys(text: &[u8]) {
    let keys = match rig::keys(text) {
        Ok(keys) => keys,
        Err((line, words)) => {
            let lines = text.split(|byte| *byte == b'\n').count();
            assert!((1..=lines).contains(&line) && !words.is_empty());
            return;
        }
    };
    for host in [HOST, "nqn.other"] {
        for psk in keys.for_host(host, SUBSYSTEM) {
            assert_eq!((psk.identity.hostnqn(), psk.identity.subnqn()), (host, SUBSYSTEM));
            assert!(keys.names(host));
            assert_eq!(Identity::parse(psk.identity.as_str()).as_ref(), Some(&psk.identity));
            assert!([32, 48].contains(&psk.secret.len()));
            let found = keys.candidates(&psk.identity);
            assert!(found.iter().all(|other| other.identity == psk.identity));
            assert!(found.iter().any(|other| other.secret == psk.secret));
        }
    }
}

/// Checks that a selected key was offered, exists, and is not selected twice.
fn read_hello(input: &mut Input<'_>) {
    let keys = rig::keys(KEYS.as_bytes()).expect("keys");
    let hello = if input.one_in(4) { input.bytes(usize::MAX).to_vec() } else { client_hello(input, &keys) };
    let chosen = rig::keys_for(&hello, &keys);
    assert!(chosen.len() <= 8);
    for (index, psk) in chosen.iter().enumerate() {
        let name = psk.identity.as_str().as_bytes();
        assert!(hello.windows(name.len()).any(|window| window == name));
        assert!(keys.candidates(&psk.identity).iter().any(|known| known.secret == psk.secret));
        assert!(chosen[..index].iter().all(|other| other.identity != psk.identity));
    }
}

/// Returns a hello that offers some keys, with some bytes wrong.
fn client_hello(input: &mut Input<'_>, keys: &Keys) -> Vec<u8> {
    let mut known = keys.for_host(HOST, SUBSYSTEM);
    known.extend(keys.for_host("nqn.other", SUBSYSTEM));
    let (mut identities, mut binders) = (Vec::new(), Vec::new());
    for _ in 0..input.below(12) {
        let length = input.byte().into();
        let name = match input.one_in(4) {
            true => input.bytes(length),
            false => known[input.below(known.len())].identity.as_str().as_bytes(),
        };
        identities.extend([&vector::<2>(name)[..], &[0; 4]].concat());
        binders.extend(vector::<1>(&[7; 48][..[0, 32, 48][input.below(3)]]));
    }
    let keys = [vector::<2>(&identities), vector::<2>(&binders)].concat();
    let extensions = [&[0, 43][..], &vector::<2>(&[2, 3, 4]), &[0, 41], &vector::<2>(&keys)].concat();
    let head = [&[3; 34][..], &vector::<1>(&[1; 32]), &vector::<2>(&[19, 1]), &vector::<1>(&[0])].concat();
    let mut hello = [head, vector::<2>(&extensions)].concat();
    for _ in 0..input.below(4) {
        let at = usize::from(input.u16()) % hello.len();
        hello[at] = input.byte();
    }
    hello
}

/// Returns bytes with their count in `BYTES` bytes before.
fn vector<const BYTES: usize>(content: &[u8]) -> Vec<u8> {
    [&(content.len() as u32).to_be_bytes()[4 - BYTES..], content].concat()
}

/// Checks that a peer without the key gets no connection, and that the handshake ends with the bytes sent.
fn shake_hands(input: &mut Input<'_>) {
    let keys = rig::keys(KEYS.as_bytes()).expect("keys");
    let pair = socketpair(AddressFamily::UNIX, SocketType::STREAM, SocketFlags::CLOEXEC, None);
    let (ours, theirs) = pair.expect("sockets");
    let mut handshake = match input.one_in(2) {
        true => Handshake::client(theirs.as_fd(), &keys.for_host(HOST, SUBSYSTEM)[0]),
        false => Handshake::server(theirs.as_fd(), Arc::new(keys)),
    }
    .expect("memory");
    let wraps = !input.one_in(4);
    let body = input.bytes(4096);
    let bytes = match wraps {
        true => [&[22, 3, 1][..], &vector::<2>(body)].concat(),
        false => body.to_vec(),
    };
    let _ = send(&ours, &bytes, SendFlags::DONTWAIT | SendFlags::NOSIGNAL);
    let _ = shutdown(&ours, Shutdown::Write);
    let ended = (0..100).find_map(|_| match handshake.advance() {
        Poll::Ready(ended) => Some(ended),
        Poll::Pending => None,
    });
    let error = ended.expect("it ends").expect_err("there is no key");
    assert!(!error.to_string().is_empty());
}

/// Expected effect of a message.
enum Meaning {
    Content(Vec<u8>),
    /// None: the conversation continues.
    Nothing,
    /// End of the conversation.
    End,
    /// Incomplete message, and nothing comes after it.
    Open,
}

/// Sends records of every kind, valid and invalid, and an answer.
fn converse(input: &mut Input<'_>) {
    let hash = input.pick(&[Hash::Sha256, Hash::Sha384]);
    let (mut peer, ours) = Session::pair(hash);
    let cut = 1 + usize::from(input.u16());
    let (mut stream, mut content, mut patience) = (Vec::new(), Vec::new(), Patience::new());
    let (mut is_over, mut goes_on) = (false, true);
    for _ in 0..PARTS {
        if input.is_empty() || !goes_on {
            break;
        }
        let (bytes, meaning) = next_message(input, &mut peer);
        stream.extend(bytes);
        match meaning {
            Meaning::Open => goes_on = false,
            Meaning::End => is_over = true,
            Meaning::Nothing => is_over = !patience.bears(0),
            Meaning::Content(more) if patience.bears(more.len()) => content.extend(more),
            Meaning::Content(_) => is_over = true,
        }
        goes_on &= !is_over;
    }
    let (mut ours, received, failure) = receive(ours, &stream, cut);
    assert!(received == content, "{} bytes instead of {}", received.len(), content.len());
    assert_eq!(failure.is_some(), is_over, "{failure:?}");
    match failure {
        Some(failure) => {
            assert!(!failure.to_string().is_empty());
            let farewell = ours.farewell(Some(failure)).to_vec();
            let (_, received, message) = receive(peer, &farewell, cut);
            let message = message.expect("it is the end").to_string();
            assert!(received.is_empty() && message.starts_with("the peer sent"), "{message}");
        }
        None => {
            let mut answer = ours.notice().map(<[u8]>::to_vec).unwrap_or_default();
            assert!(!ours.owes());
            answer.extend_from_slice(ours.seal(6, |room| room.copy_from_slice(b"answer")));
            let (_, received, failure) = receive(peer, &answer, cut);
            assert!(received == b"answer" && failure.is_none(), "{failure:?}");
        }
    }
}

/// Limit of records without content.
struct Patience {
    left: u32,
    content: usize,
}

impl Patience {
    fn new() -> Self {
        Self { left: 32, content: 0 }
    }

    fn bears(&mut self, content: usize) -> bool {
        if content == 0 {
            self.left = self.left.wrapping_sub(1);
            return self.left != u32::MAX;
        }
        self.content += content;
        if self.content >= 64 << 10 {
            (self.left, self.content) = (32.min(self.left + 1), 0);
        }
        true
    }
}

/// Returns a message, and its meaning.
fn next_message(input: &mut Input<'_>, peer: &mut Session) -> (Vec<u8>, Meaning) {
    const ALERT: u8 = 21;
    const HANDSHAKE: u8 = 22;
    const DATA: u8 = 23;
    match input.below(10) {
        0..3 => {
            let length = input.dword() as usize % (CONTENT_MAX + 300);
            let zeros = if input.one_in(4) { usize::from(input.u16()) % 400 } else { 0 };
            let content = vec![input.byte(); length];
            let is_right = length <= CONTENT_MAX && length + 1 + zeros + TAG <= BODY_MAX;
            (
                peer.seal_any(DATA, &content, zeros),
                if is_right { Meaning::Content(content) } else { Meaning::End },
            )
        }
        3 => (peer.update(input.one_in(2)), Meaning::Nothing),
        4 => {
            let tickets: Vec<u8> =
                (0..=input.below(3)).flat_map(|_| [&[4, 0][..], &vector::<2>(&[9; 40])].concat()).collect();
            (peer.seal_any(HANDSHAKE, &tickets, 0), Meaning::Nothing)
        }
        5 => (peer.seal_any(ALERT, &[1, input.byte()], 0), Meaning::End),
        6 => {
            // A KeyUpdate, but not quite.
            let mut message = [24, 0, 0, 1, 1, 0];
            message[input.below(4)] ^= 1 + input.byte() % 16;
            (peer.seal_any(HANDSHAKE, &message[..1 + input.below(6)], 0), Meaning::End)
        }
        7 => {
            // No content, no type, or an undefined type.
            let kind = input.pick(&[0, 20, 24, 255]);
            let length = usize::from(kind != 0) * usize::from(input.byte());
            (peer.seal_any(kind, &vec![1; length], input.byte().into()), Meaning::End)
        }
        8 => {
            let mut record = peer.seal_any(DATA, &vec![5; usize::from(input.byte())], 0);
            let at = usize::from(input.u16()) % record.len();
            record[at] ^= 1 << input.below(8);
            // A record that got longer is waited for.
            let means = without_key(&record);
            (record, means)
        }
        _ => {
            let length = usize::from(input.byte());
            let bytes = input.bytes(length).to_vec();
            let means = without_key(&bytes);
            (bytes, means)
        }
    }
}

/// Returns the meaning of bytes that were not encrypted, or were changed after it.
fn without_key(bytes: &[u8]) -> Meaning {
    let Some([kind, _, _, high, low]) = bytes.first_chunk::<HEADER>() else { return Meaning::Open };
    let body = usize::from(u16::from_be_bytes([*high, *low]));
    let is_header = *kind == 23 && body > TAG && body <= BODY_MAX;
    if is_header && bytes.len() < HEADER + body { Meaning::Open } else { Meaning::End }
}

/// Returns the state and the data of an end after it received a stream in parts.
fn receive(mut to: Session, stream: &[u8], cut: usize) -> (Session, Vec<u8>, Option<Failure>) {
    let mut received = Vec::new();
    for mut bytes in stream.chunks(cut) {
        while !bytes.is_empty() {
            let room = to.room();
            assert!(!room.is_empty(), "there is always a next byte");
            let count = room.len().min(bytes.len());
            room[..count].copy_from_slice(&bytes[..count]);
            bytes = &bytes[count..];
            if let Err(failure) = to.filled(count) {
                return (to, received, Some(failure));
            }
            received.extend_from_slice(to.content());
            to.take(to.content().len());
        }
    }
    (to, received, None)
}

/// Checks that PDUs mean the same in all divisions into records and receives.
fn stream_in(input: &mut Input<'_>) {
    let role = input.pick(&[Role::Controller, Role::Host]);
    let digests = Digests { header: input.one_in(2), data: input.one_in(2) };
    let (most, cut) = (1 + usize::from(input.u16()), 1 + usize::from(input.u16()));
    let updates = input.one_in(2);
    let pdus = input.bytes(usize::MAX);
    let mut whole = Reader::new(role, digests, true);
    whole.receive(pdus, usize::MAX);
    let (mut peer, ours) = Session::pair(Hash::Sha256);
    let mut stream = Stream::new(Box::new(ours)).expect("memory");
    let mut ciphertext = Vec::new();
    for (number, piece) in pdus.chunks(most.min(CONTENT_MAX)).enumerate() {
        if updates && number == 1 {
            ciphertext.extend(peer.update(false));
        }
        ciphertext.extend_from_slice(peer.seal(piece.len(), |room| room.copy_from_slice(piece)));
    }
    let mut reader = Reader::new(role, digests, true);
    for received in ciphertext.chunks(cut) {
        stream.memory().write(0, received);
        stream.received(received.len());
        while stream.advance().expect("all of it is right") > 0 {
            reader.receive(stream.content(), usize::MAX);
            stream.take_all();
        }
    }
    assert_eq!(reader.outcome, whole.outcome, "records of {most}, receives of {cut}");
}

/// Checks that the other end receives all sent data, for any amount that the kernel takes at a time.
fn stream_out(input: &mut Input<'_>) {
    let (ours, mut peer) = Session::pair(Hash::Sha384);
    let mut stream = Stream::new(Box::new(ours)).expect("memory");
    let plain = SharedRegion::new("sluice-fuzz", 1 << 20).expect("memory");
    let mut at = 0;
    let mut segments: Vec<Segment> = Vec::new();
    for _ in 0..input.below(12) {
        let length = 1 + input.dword() as usize % (plain.len() / 16);
        segments.push(plain.segment(at, length as u32));
        plain.fill(at, length, input.byte());
        at += length;
    }
    let mut sent_bytes = vec![0; at];
    plain.read(0, &mut sent_bytes);
    let (mut received, mut sent) = (0, 0);
    while sent < at {
        // Rest of the segments.
        let mut before = sent;
        let rest: Vec<Segment> = segments
            .iter()
            .filter_map(|segment| {
                let skipped = before.min(segment.len() as usize);
                before -= skipped;
                let left = segment.len() - skipped as u32;
                (left > 0).then(|| segment.slice(skipped as u32, left))
            })
            .collect();
        loop {
            let sealed = stream.seal(&rest);
            let taken = match input.one_in(3) {
                true => 1 + input.u16() as u32 % sealed.len(),
                false => sealed.len(),
            };
            let mut ciphertext = vec![0; taken as usize];
            sealed.slice(0, taken).read(&mut ciphertext);
            let (back, more, failure) = receive(peer, &ciphertext, usize::MAX);
            assert!(failure.is_none() && sent_bytes[received..].starts_with(&more), "{failure:?}");
            (peer, received) = (back, received + more.len());
            if let Some(content) = stream.sent(taken as usize) {
                sent += content;
                break;
            }
        }
        assert_eq!(received, sent);
    }
}

//! Traces of a key in the memory of a process: none in a place that a core dump would have.

use sluice_crypt::luks::{Header, Limits};
use sluice_crypt::{Given, Source, Xts, ciphering, sealed};
use sluice_memory::Secret;
use std::fs::File;
use std::hint::black_box;
use std::io::Cursor;
use std::os::unix::fs::{FileExt, PermissionsExt};
use std::sync::mpsc::{Receiver, Sender, channel};

const HEADER: &[u8] = include_bytes!("data/argon2id.luks2");

/// The header's key and its passphrase, each byte inverted: so they are nowhere in this program.
static INVERTED_KEY: [u8; 32] = [
    0x8c, 0xdf, 0x7f, 0x3b, 0xee, 0xab, 0xc0, 0xe6, 0x9a, 0x1b, 0x09, 0xbb, 0x7b, 0x36, 0xea, 0xd2, 0x95,
    0xb6, 0x8d, 0xf3, 0x17, 0xff, 0x62, 0xba, 0xbe, 0xe9, 0x33, 0xef, 0x57, 0xf3, 0xdd, 0x1e,
];
const INVERTED_PASSPHRASE: &[u8] =
    b"\x9c\x90\x8d\x8d\x9a\x9c\x8b\xdf\x97\x90\x8d\x8c\x9a\xdf\x9d\x9e\x8b\x8b\x9a\x8d\x86\xdf\x8c\x8b\x9e\x8f\x93\x9a";

const NOWHERE: [String; 0] = [];

/// Searches from another thread, which leaves the stack of this one nearly unchanged.
struct Search {
    ask: Sender<&'static [u8]>,
    answer: Receiver<Vec<String>>,
}

impl Search {
    fn start() -> Self {
        let ((ask, asked), (reply, answer)) = (channel(), channel());
        std::thread::spawn(move || asked.iter().for_each(|inverted| drop(reply.send(search(inverted)))));
        Self { ask, answer }
    }

    fn found(&self, inverted: &'static [u8]) -> Vec<String> {
        self.ask.send(inverted).expect("it listens");
        self.answer.recv().expect("it answers")
    }
}

/// Returns the addresses in this process of 16 bytes that are these, inverted.
fn search(inverted: &[u8]) -> Vec<String> {
    let maps = std::fs::read_to_string("/proc/self/smaps").expect("it is there");
    let memory = File::open("/proc/self/mem").expect("it is ours");
    let (mut map, mut places) = ("", Vec::new());
    for line in maps.lines() {
        if line.split(' ').next().is_some_and(|first| first.contains('-')) {
            map = line;
        }
        if line.strip_prefix("VmFlags:").is_some_and(|flags| !flags.contains(" dd")) {
            let range = map.split(' ').next().and_then(|range| range.split_once('-')).expect("a range");
            let number = |text| u64::from_str_radix(text, 16).expect("an address");
            let mut page = [0; 4096];
            for at in (number(range.0)..number(range.1)).step_by(page.len()) {
                if memory.read_exact_at(&mut page, at).is_err() {
                    continue;
                }
                for (offset, window) in page.windows(16).enumerate() {
                    if inverted.chunks_exact(16).any(|piece| piece.iter().zip(window).all(|(a, b)| *a == !b))
                    {
                        places.push(format!("{:#x} in {map}", at + offset as u64));
                    }
                }
                page.fill(0);
            }
        }
    }
    places
}

/// Checks a passphrase read from a file, a header opened with it, and a cipher made of its key: one after the
/// other.
#[test]
fn nothing_is_left_of_a_key() {
    let search = Search::start();
    let folder = tempfile::tempdir().expect("a folder");
    let path = folder.path().join("passphrase");
    let mut passphrase: Vec<u8> = black_box(INVERTED_PASSPHRASE).iter().map(|byte| !byte).collect();
    std::fs::write(&path, &passphrase).expect("room on the disk");
    std::fs::set_permissions(&path, PermissionsExt::from_mode(0o600)).expect("it is ours");
    assert!(!search.found(INVERTED_PASSPHRASE).is_empty(), "it would be found");
    passphrase.fill(0);
    black_box(&passphrase);
    assert_eq!(search.found(INVERTED_PASSPHRASE), NOWHERE, "written over");

    let secret = Source::File(path).read(&Given::default()).expect("nobody else may use it");
    assert_eq!(search.found(INVERTED_PASSPHRASE), NOWHERE, "read");
    let mut file = Cursor::new(HEADER);
    let header = Header::read(&mut file).expect("it is whole");
    let key = header.unlock(&mut file, &secret, None, &Limits::default()).expect("the passphrase is right");
    assert!(key.iter().zip(black_box(INVERTED_KEY)).all(|(a, b)| *a == !b));
    assert_eq!(search.found(INVERTED_PASSPHRASE), NOWHERE, "unlocked");
    assert_eq!(search.found(&INVERTED_KEY), NOWHERE, "unlocked");
    let cipher = sealed(|| Secret::new(Xts::new(&key).expect("of 32 bytes")).expect("memory"));
    assert_eq!(search.found(&INVERTED_KEY), NOWHERE, "a cipher made");
    let mut sector = [0; 4096];
    for ciphered in [Xts::encrypt, Xts::decrypt] {
        ciphering(|| ciphered(&cipher, 7, &mut sector));
        assert_eq!(search.found(&INVERTED_KEY), NOWHERE, "ciphered");
    }
    assert!(sector == [0; 4096]);
}

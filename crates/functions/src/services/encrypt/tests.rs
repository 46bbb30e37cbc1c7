use super::*;
use crate::host::entry;
use sluice_command::Request;
use sluice_crypt::luks::Segment;
use sluice_memory::{Buffers, SharedRegion};
use sluice_uif::Session;
use sluice_uif::abi::{Reply, Submission, disposition, flag, kind};
use std::os::unix::fs::PermissionsExt;
use std::path::PathBuf;

fn bytes(hex: &str) -> Vec<u8> {
    let digits: Vec<u8> = hex.bytes().filter(u8::is_ascii_hexdigit).collect();
    let byte = |pair: &[u8]| u8::from_str_radix(std::str::from_utf8(pair).expect("digits"), 16).expect("hex");
    digits.chunks_exact(2).map(byte).collect()
}

/// Writes a key file in a directory of its own.
fn key_file(key: &[u8], mode: u32) -> (tempfile::TempDir, PathBuf) {
    let folder = tempfile::tempdir().expect("a folder");
    let path = folder.path().join("key");
    std::fs::write(&path, key).expect("room on the disk");
    std::fs::set_permissions(&path, PermissionsExt::from_mode(mode)).expect("it is ours");
    (folder, path)
}

fn encrypt(extra: &[(&str, &str)]) -> Encrypt {
    let key: Vec<u8> = (0..64).collect();
    let (_folder, path) = key_file(&key, 0o600);
    let path = [("key_file", path.to_str().expect("text"))];
    let options = path.iter().chain(extra).map(|(key, value)| (key.to_string(), value.to_string()));
    Encrypt::new(&Options::new(options), &Given::default()).expect("a key")
}

/// Made by cryptsetup, for the tests of `sluice-crypt`.
const HEADER: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../crypt/tests/data/argon2id.luks2");

/// Compares the key and the sectors of a LUKS header with those of `cryptsetup luksDump`.
#[test]
fn a_luks_header_has_the_key_and_the_layout() {
    let key = "732080c411543f1965e4f64484c9152d6a49720ce8009d454116cc10a80c22e1";
    let (_folder, path) = key_file(&bytes(key), 0o600);
    let plain = [("key_file", path.to_str().expect("text")), ("sector_size", "4096")];
    let (_folder, path) = key_file(b"correct horse battery staple", 0o600);
    let luks = [("key_file", path.to_str().expect("text")), ("luks", HEADER)];
    let [plain, luks] = [plain, luks].map(|options| {
        let options = options.map(|(key, value)| (key.to_owned(), value.to_owned()));
        Encrypt::new(&Options::new(options), &Given::default()).expect("a key")
    });
    assert_eq!((plain.properties(), plain.layout), (luks.properties(), luks.layout));
    let mut data = [[7; 8192]; 2];
    plain.encrypt(4096, &mut data[0]);
    luks.encrypt(4096, &mut data[1]);
    assert!(data[0] == data[1]);
}

/// Checks the size of the disk and the first tweak of a LUKS header.
#[test]
fn a_segment_may_be_smaller_than_the_disk_and_numbered_from_anywhere() {
    let segment = Segment { offset: 0, size: Some(1 << 20), sector_size: 4096, iv_tweak: u64::MAX };
    let layout = Layout::from(segment);
    assert_eq!(layout.tweaks(8192).take(2).collect::<Vec<_>>(), [15, 23]);
    let function = Encrypt { layout, ..encrypt(&[]) };
    assert_eq!((function.properties().size, function.properties().block_size), (1 << 20, 4096));
}

/// Function without a daemon.
struct Alone {
    session: Session,
    memory: Buffers,
}

impl Alone {
    fn new(function: Encrypt) -> Self {
        let memory = SharedRegion::new("arena", 1 << 20).expect("memory");
        Self { session: Session::new(Box::new(function), 1 << 20), memory: Buffers::new(memory) }
    }

    /// Sends a request with its data. Returns the reply.
    fn ask(&mut self, entry: Submission, data: &mut [u8]) -> Reply {
        let entry = Submission { data_length: data.len() as u32, ..entry };
        self.memory.bytes(0, data.len()).expect("room").copy_from_slice(data);
        self.session.take(&entry, &mut self.memory, 0);
        data.copy_from_slice(self.memory.bytes(0, data.len()).expect("room"));
        self.session.replies(usize::MAX).next().expect("it holds nothing")
    }
}

fn entry(operation: Operation, offset: u64, length: u64) -> Submission {
    entry::about(&Request { operation, offset, length, ..Request::default() })
}

fn back(entry: Submission, stage: u8) -> Submission {
    Submission { kind: kind::RETURNED, stage, ..entry }
}

/// Compares with OpenSSL's AES-256-XTS of 8 KiB at byte 40,960 with dm-crypt's numbers of sectors: the first
/// block, the first of the second 512 bytes, and the last.
#[test]
fn sectors_are_numbered_as_dm_crypt_does_it() {
    let layouts = [
        (
            "512",
            "no",
            [
                "e51362b27fb70b6c066df29a88cdb810",
                "e5b39a7fe3959b09a4ef43c95fa5b077",
                "2e9c0de2d710a37c2f6b75a91462ee0a",
            ],
        ),
        (
            "4096",
            "no",
            [
                "e51362b27fb70b6c066df29a88cdb810",
                "f3d7257f71599eff1c96a7eaa1dd076b",
                "59167b7e5ad013b5f926c225137e899b",
            ],
        ),
        (
            "4096",
            "yes",
            [
                "4f965964c7d4a4d1e157c8adabefee53",
                "bbeeb5ee989ed8df703848ffe8666b41",
                "b839f82775bed321dfc8644da9dbc4fb",
            ],
        ),
    ];
    let plain: Vec<u8> = (0..8192).map(|n| (n * 7 + n / 256) as u8).collect();
    for (size, large, expected) in layouts {
        let mut function = Alone::new(encrypt(&[("sector_size", size), ("large_sectors", large)]));
        let mut data = plain.clone();
        let sent = function.ask(entry(Operation::Write, 40_960, 8192), &mut data);
        assert_eq!(sent.disposition, disposition::FORWARD);
        let blocks = [&data[..16], &data[512..528], &data[8176..]];
        assert_eq!(blocks, expected.map(bytes).each_ref().map(|block| &block[..]), "{size} {large}");
        let done = function.ask(back(entry(Operation::Read, 40_960, 8192), 0), &mut data);
        assert_eq!((done.disposition, done.status), (disposition::FINISH, 0));
        assert!(data == plain);
    }
}

#[test]
fn zeros_are_written_encrypted_piece_by_piece() {
    let function = encrypt(&[]);
    let (start, length) = (1 << 20, 10 * 4096 + 512);
    let mut expected = vec![0; length as usize];
    function.encrypt(start, &mut expected);
    let (mut function, mut buffer) = (Alone::new(function), [0; 4096]);
    let mut zeros = entry(Operation::WriteZeroes, start, length);
    zeros.flags = flag::FUA;
    let mut reply = function.ask(zeros, &mut buffer);
    let mut written: Vec<u8> = Vec::new();
    while let Some((Answer::ForwardAndReturn(ZEROED), request)) = entry::answer(&reply) {
        assert_eq!((request.operation, request.fua), (Operation::Write, true));
        assert_eq!(request.offset, start + written.len() as u64);
        written.extend(&buffer[..request.length as usize]);
        let sent = Submission { cookie: reply.cookie, ..entry::about(&request) };
        reply = function.ask(back(sent, ZEROED), &mut buffer);
    }
    assert_eq!((reply.disposition, reply.status), (disposition::FINISH, 0));
    assert!(written == expected);
    let failed = Submission { status: Status::WRITE_FAULT.0, ..entry(Operation::Write, start, 512) };
    let reply = function.ask(back(failed, ZEROED), &mut buffer);
    assert_eq!((reply.disposition, reply.status), (disposition::FINISH, Status::WRITE_FAULT.0));
}

#[test]
fn what_is_wrong_with_a_key_or_an_option_is_said() {
    let said = |key: &[u8], mode: u32, extra: &[(&str, &str)]| {
        let (folder, path) = key_file(key, mode);
        let path = [("key_file", path.to_str().expect("text"))];
        let options = path.iter().chain(extra).map(|(key, value)| (key.to_string(), value.to_string()));
        let words = Encrypt::new(&Options::new(options), &Given::default()).expect_err("something is wrong");
        words.replace(folder.path().to_str().expect("text"), "DIR")
    };
    assert_eq!(said(&[1; 64], 0o640, &[]), "key file DIR/key: others may use it (mode 640): chmod 600 it");
    for bytes in [48, 65] {
        let words = format!("the key has {bytes} bytes; an AES-XTS key has 32 or 64");
        assert_eq!(said(&vec![1; bytes], 0o600, &[]), words);
    }
    let words = "sector_size is 512, 1024, 2048 or 4096, not 520";
    assert_eq!(said(&[1; 64], 0o600, &[("sector_size", "520")]), words);
    assert_eq!(said(&[1; 64], 0o600, &[("keyslot", "1")]), "keyslot is an option beside luks");
    assert!(said(b"x", 0o600, &[("luks", HEADER), ("large_sectors", "no")]).contains("leave it out"));
    assert!(said(b"x", 0o600, &[("luks", HEADER)]).contains("no keyslot opens with this passphrase"));
    let words = said(b"x", 0o600, &[("luks", HEADER), ("data_offset", "4096")]);
    assert!(words.contains("its data begins at byte 0, not 4096: add the option data_offset"), "{words}");
    let words = said(b"x", 0o600, &[("luks", "/dev/null")]);
    assert!(words.contains("/dev/null: it is neither a file nor a block device"), "{words}");
    let (_folder, empty) = key_file(b"", 0o600);
    let words = said(b"x", 0o600, &[("luks", empty.to_str().expect("text"))]);
    assert!(words.contains("/key: the LUKS header cannot be read"), "{words}");
    assert!(said(&[1; 64], 0o600, &[("cipher", "aes")]).contains("no option `cipher`"));
    let words = Encrypt::new(&Options::default(), &Given::default()).expect_err("no key");
    assert!(words.contains("exactly one of the options key_file"), "{words}");
}

/// Checks the properties that the layers around it rely on.
#[test]
fn its_properties_are_those_of_a_cipher() {
    let properties = encrypt(&[]).properties();
    assert!(properties.transforms && properties.scratch > 0 && properties.size == 0);
    let options = |key: &str| Options::new([(key.to_owned(), "x".to_owned())]);
    assert!(Encrypt::keeps_size(&options("key_file")) && !Encrypt::keeps_size(&options("luks")));
}

/// Opens a pipe and a folder as a header: neither blocks, and both are refused.
#[test]
fn a_header_is_a_file_or_a_block_device() {
    let folder = tempfile::tempdir().expect("a folder");
    let path = folder.path().join("pipe");
    rustix::fs::mknodat(rustix::fs::CWD, &path, rustix::fs::FileType::Fifo, 0o600.into(), 0).expect("a pipe");
    for path in [path.as_path(), folder.path()] {
        let error = settings::open_header(path.to_str().expect("text")).expect_err("it is no header");
        assert_eq!(error, "it is neither a file nor a block device");
    }
    assert!(settings::open_header(HEADER).is_ok());
}

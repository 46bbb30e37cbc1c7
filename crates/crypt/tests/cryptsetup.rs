//! Headers of the cryptsetup of this machine, if it has one.

use sluice_crypt::luks::{Header, Limits};
use std::fs::File;
use std::path::Path;
use std::process::Command;

const PASSPHRASE: &[u8] = b"first passphrase";
const SECOND: &[u8] = b"\x00\xffnot text\n";

/// Runs cryptsetup; returns false if there is none.
fn cryptsetup(folder: &Path, words: &str) -> bool {
    let mut command = Command::new("cryptsetup");
    command.env("PATH", "/usr/sbin:/usr/bin:/sbin:/bin").current_dir(folder);
    let Ok(done) = command.args(words.split_whitespace()).output() else { return false };
    assert!(done.status.success(), "cryptsetup {words}: {}", String::from_utf8_lossy(&done.stderr));
    true
}

#[test]
fn what_cryptsetup_makes_opens() {
    let folder = tempfile::tempdir().expect("a folder");
    let path = |name: &str| folder.path().join(name);
    if !cryptsetup(folder.path(), "--version") {
        eprintln!("skipped: this machine has no cryptsetup");
        return;
    }
    std::fs::write(path("first"), PASSPHRASE).expect("room on the disk");
    std::fs::write(path("second"), SECOND).expect("room on the disk");
    let kinds = [
        "--pbkdf pbkdf2 --pbkdf-force-iterations 1000 --sector-size 512",
        "--pbkdf pbkdf2 --pbkdf-force-iterations 1000 --hash sha512 --key-size 256 --sector-size 4096",
        "--pbkdf pbkdf2 --pbkdf-force-iterations 1000 --hash sha1 --sector-size 4096",
        "--pbkdf pbkdf2 --pbkdf-force-iterations 1000 --hash sha3-256 --sector-size 4096",
        "--pbkdf pbkdf2 --pbkdf-force-iterations 1000 --hash whirlpool --sector-size 4096",
        "--pbkdf pbkdf2 --pbkdf-force-iterations 1000 --hash ripemd160 --sector-size 4096",
        "--pbkdf pbkdf2 --pbkdf-force-iterations 1000 --hash blake2b-512 --sector-size 4096",
        "--pbkdf pbkdf2 --pbkdf-force-iterations 1000 --hash blake2s-256 --sector-size 4096",
        "--pbkdf argon2i --pbkdf-memory 1024 --pbkdf-force-iterations 4 --pbkdf-parallel 1 --luks2-metadata-size 64k",
        "--pbkdf argon2id --pbkdf-memory 65536 --pbkdf-force-iterations 4 --pbkdf-parallel 4 --offset 65536",
    ];
    for kind in kinds {
        let image = File::create(path("image")).expect("room on the disk");
        image.set_len(48 << 20).expect("it may be sparse");
        cryptsetup(folder.path(), &format!("luksFormat -q --type luks2 {kind} --key-file first image"));
        let cost = "--pbkdf pbkdf2 --pbkdf-force-iterations 1200";
        let more = format!("luksAddKey -q {cost} --key-slot 5 --key-file first image second");
        cryptsetup(folder.path(), &more);
        let _ = std::fs::remove_file(path("key"));
        let dump = "luksDump -q --dump-volume-key --volume-key-file key --key-file first image";
        cryptsetup(folder.path(), dump);
        let key = std::fs::read(path("key")).expect("it was dumped");
        let mut image = File::open(path("image")).expect("it is there");
        let header = Header::read(&mut image).expect("it is whole");
        let segment = header.segment();
        let offset = if kind.contains("--offset") { 32 << 20 } else { 16 << 20 };
        assert_eq!((segment.offset, segment.size, segment.iv_tweak), (offset, None, 0), "{kind}");
        assert_eq!(kind.contains("--sector-size 512"), segment.sector_size == 512, "{kind}");
        let mut unlock = |passphrase: &[u8], number| {
            header.unlock(&mut image, passphrase, number, &Limits::default()).map(|key| key.to_vec())
        };
        for (passphrase, number) in [(PASSPHRASE, None), (SECOND, None), (SECOND, Some(5))] {
            assert!(unlock(passphrase, number) == Ok(key.clone()), "{kind}, keyslot {number:?}");
        }
        assert!(unlock(PASSPHRASE, Some(5)).is_err() && unlock(b"neither", None).is_err());
    }
}

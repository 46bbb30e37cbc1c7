use super::*;
use proptest::prelude::*;

pub(crate) const HOST: &str = "nqn.2014-08.org.nvmexpress:uuid:11111111-2222-4333-8444-555555555555";
pub(crate) const SUBSYSTEM: &str = "nqn.2024-01.org.example:disk";

/// A file with a key of each kind: bytes 0 to 31 or 47.
pub(crate) const FILE: &str = "\
# The keys of a test.
NVMeTLSkey-1:01:AAECAwQFBgcICQoLDA0ODxAREhMUFRYXGBkaGxwdHh+KfiaR:

NVMeTLSkey-1:02:AAECAwQFBgcICQoLDA0ODxAREhMUFRYXGBkaGxwdHh8gISIjJCUmJygpKissLS4vcSEgBQ==:
NVMeTLSkey-1:00:AAECAwQFBgcICQoLDA0ODxAREhMUFRYXGBkaGxwdHh+KfiaR:
";

pub(crate) fn keys(text: &str) -> Keys {
    Keys::new(SecretBytes::copy_of(text.as_bytes()).expect("memory")).expect("keys")
}

fn wrong(text: &str) -> (usize, &'static str) {
    Keys::new(SecretBytes::copy_of(text.as_bytes()).expect("memory")).expect_err("it is wrong")
}

/// Returns the keys of a line for the two names above, derived in each way.
pub(crate) fn derived(line: &str, version: &str) -> Vec<Psk> {
    let (hash, key) = interchange(line).expect("a configured key");
    let key = Configured { hash, key };
    let version = if version == "0" { Version::Zero } else { Version::One };
    let psk = |labels| key.psk(version, labels, HOST, SUBSYSTEM).expect("both are names");
    Labels::ALL.into_iter().map(psk).collect()
}

/// Formats a line of nvme-cli's `--keyfile`.
pub(crate) fn line_of(psk: &Psk) -> String {
    let checksum = crc32fast::hash(&psk.secret).to_le_bytes();
    let encoded = Base64::encode_string(&[&psk.secret[..], &checksum].concat());
    format!("{} NVMeTLSkey-1:{:02}:{encoded}:", psk.identity, psk.identity.hash.number())
}

#[test]
fn whose_a_key_is_stands_before_it() {
    let own = FILE.lines().nth(1).expect("a key");
    let text = format!("{HOST} {own}\n");
    assert!(!keys(&text).for_host(HOST, SUBSYSTEM).is_empty());
    assert!(keys(&text).for_host("nqn.other", SUBSYSTEM).is_empty());
    assert!(!keys(own).for_host("nqn.other", SUBSYSTEM).is_empty());
    let derived = line_of(&derived(own, "0")[0]);
    let psk = keys(&format!("{text}{derived}")).for_host(HOST, SUBSYSTEM).remove(0);
    assert_eq!(psk.identity.as_str(), format!("NVMe0R01 {HOST} {SUBSYSTEM}"), "what is derived comes first");
    assert!(keys(&derived).for_host(HOST, "nqn.other").is_empty());
}

/// Finds keys in their lines, with anything before, between and behind them.
#[test]
fn a_key_is_found_wherever_it_stands() {
    let own = FILE.lines().nth(1).expect("a key");
    let line = format!("{HOST} {own}");
    let wanted = keys(&line).for_host(HOST, SUBSYSTEM);
    let spaced = format!("# nothing\r\n\n \t{HOST}\t  {own}\t \r\n\n");
    let crowded = (0..60).map(|n| format!("nqn.h{n} {own}\n")).collect::<String>() + &line;
    for text in [spaced, crowded] {
        let found = keys(&text).for_host(HOST, SUBSYSTEM);
        assert!(found.iter().map(|psk| &psk.secret).eq(wanted.iter().map(|psk| &psk.secret)), "{text}");
        for psk in &wanted {
            assert!(keys(&text).candidates(&psk.identity).iter().any(|it| it.secret == psk.secret));
        }
    }
}

/// Rejects the key for every host, for a host that has a key of its own.
#[test]
fn a_key_of_ones_own_comes_instead_of_everybodys() {
    let [everybodys, own] = [3, 1].map(|line| FILE.lines().nth(line).expect("a key"));
    let both = keys(&format!("{everybodys}\n{HOST} {own}\n"));
    let (alone, general) = (keys(&format!("{HOST} {own}\n")), keys(everybodys));
    let secrets = |all: Vec<Psk>| all.into_iter().map(|psk| psk.secret).collect::<Vec<_>>();
    assert_eq!(secrets(both.for_host(HOST, SUBSYSTEM)), secrets(alone.for_host(HOST, SUBSYSTEM)));
    let other = general.for_host("nqn.other", SUBSYSTEM);
    assert!(!both.candidates(&other[0].identity).is_empty(), "another has everybody's");
    for psk in general.for_host(HOST, SUBSYSTEM) {
        assert!(both.candidates(&psk.identity).iter().all(|it| it.secret != psk.secret));
    }
}

#[test]
fn a_wrong_line_is_named() {
    let own = FILE.lines().nth(1).expect("a key");
    let cases = [
        ("", 1, "there is no key"),
        ("# nothing\n\n", 1, "there is no key"),
        ("\nNVMeTLSkey-2:01:AAAA:", 2, "not of the form"),
        ("NVMeTLSkey-1:01:AAAA", 1, "not of the form"),
        ("NVMeTLSkey-1:03:AAAA:", 1, "neither 00, 01 nor 02"),
        ("NVMeTLSkey-1:01:!!!!:", 1, "not Base64"),
        ("NVMeTLSkey-1:01:AAA=:", 1, "too short"),
        ("NVMeTLSkey-1:00:AAAAAAA=:", 1, "checksum"),
        (&own.replace(":01:", ":02:"), 1, "not as long as its hash"),
        (&own.replace("AAEC", "AAEB"), 1, "checksum"),
        (&format!("{own}\nsomebody {own}"), 2, "neither a host's NQN"),
        (&format!("NVMe0R02 nqn.a nqn.b {own}"), 1, "as long as the hash"),
    ];
    for (text, line, what) in cases {
        let (number, words) = wrong(text);
        assert_eq!(number, line, "{text:?}");
        assert!(words.contains(what), "{text:?}: {words}");
    }
    let bytes = SecretBytes::copy_of(&[0xff, 0xfe]).expect("memory");
    assert_eq!(Keys::new(bytes).expect_err("no text"), (1, "it is not text"));
}

#[test]
fn candidates_have_the_name_that_was_asked_for() {
    let keys = keys(FILE);
    for version in ["0", "1"] {
        for line in FILE.lines().filter(|line| line.starts_with("NVMe")) {
            for psk in derived(line, version) {
                let candidates = keys.candidates(&psk.identity);
                assert!(candidates.iter().all(|it| it.identity == psk.identity));
                assert!(candidates.iter().any(|it| it.secret == psk.secret), "{}", psk.identity);
            }
        }
    }
    let other = Identity::parse("NVMe1R01 nqn.a nqn.b c").expect("an identity");
    assert!(keys.candidates(&other).is_empty());
}

/// Covers all derivations of libnvme, which depend on its version and its options.
#[test]
fn a_host_has_every_derivation_the_likeliest_first() {
    let own = FILE.lines().nth(1).expect("a key");
    let secrets = |all: Vec<Psk>| all.into_iter().map(|psk| psk.secret).collect::<Vec<_>>();
    let expected = secrets([derived(own, "1"), derived(own, "0")].into_iter().flatten().collect());
    assert_eq!(secrets(keys(own).for_host(HOST, SUBSYSTEM)), expected);
    let [zero, one] = ["0", "1"].map(|version| line_of(&derived(own, version)[0]));
    let found = keys(&format!("{own}\n{zero}\n{one}")).for_host(HOST, SUBSYSTEM);
    assert_eq!(
        found.iter().map(|psk| psk.identity.version()).collect::<Vec<_>>(),
        [Version::One, Version::Zero]
    );
}

proptest! {
    /// Parses random files: the first malformed line is named, or all lines are valid.
    #[test]
    fn damage_is_named(at in 0usize..400, byte: u8, end in 0usize..400) {
        let own = FILE.lines().nth(1).expect("a key");
        let mut text = format!("{FILE}\n{HOST} {own}\nNVMe0R01 {HOST} {SUBSYSTEM} {own}").into_bytes();
        let count = text.len();
        text[at % count] = byte;
        text.truncate(count - end % count);
        match Keys::new(SecretBytes::copy_of(&text).expect("memory")) {
            Ok(keys) => prop_assert!(keys.for_host(HOST, SUBSYSTEM).len() <= 4),
            Err((line, _)) => prop_assert!(line <= text.split(|byte| *byte == b'\n').count()),
        }
    }

    /// Parses keys in interchange format into the bytes that they were made of.
    #[test]
    fn interchange_format_goes_there_and_back(secret in prop::collection::vec(any::<u8>(), 48), short: bool) {
        let (hash, length) = if short { (1, 32) } else { (2, 48) };
        let identity = Identity::parse(&format!("NVMe0R0{hash} {HOST} {SUBSYSTEM}")).expect("an identity");
        let psk = Psk { identity, secret: Zeroizing::new(secret[..length].to_vec()) };
        prop_assert_eq!(&keys(&line_of(&psk)).for_host(HOST, SUBSYSTEM).remove(0).secret, &psk.secret);
    }
}

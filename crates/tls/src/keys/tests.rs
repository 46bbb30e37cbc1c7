use super::*;

pub(crate) const HOST: &str = "nqn.2014-08.org.nvmexpress:uuid:11111111-2222-4333-8444-555555555555";
pub(crate) const SUBSYSTEM: &str = "nqn.2024-01.org.example:disk";

/// One key of each kind: bytes 0 to 31 or 47.
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

/// The keys of a line for the two names above, derived in each way.
pub(crate) fn derived(line: &str, version: &str) -> Vec<Psk> {
    let Ok(Line::Configured(_, key)) = Line::parse(line.as_bytes()) else { panic!("a configured key") };
    let version = if version == "0" { Version::Zero } else { Version::One };
    let psk = |labels| key.psk(version, labels, HOST, SUBSYSTEM).expect("both are names");
    Labels::ALL.into_iter().map(psk).collect()
}

/// A line as nvme-cli's `--keyfile` has it.
pub(crate) fn line_of(psk: &Psk) -> String {
    let checksum = crc32fast::hash(&psk.secret).to_le_bytes();
    let encoded = Base64::encode_string(&[&psk.secret[..], &checksum].concat());
    format!("{} NVMeTLSkey-1:{:02}:{encoded}:", psk.identity, psk.identity.hash.number())
}

#[test]
fn whose_a_key_is_stands_before_it() {
    let own = FILE.lines().nth(1).expect("a key");
    let text = format!("{HOST} {own}\n");
    assert!(keys(&text).for_host(HOST, SUBSYSTEM).is_some());
    assert!(keys(&text).for_host("nqn.other", SUBSYSTEM).is_none());
    assert!(keys(own).for_host("nqn.other", SUBSYSTEM).is_some());
    let derived = line_of(&derived(own, "0")[0]);
    let psk = keys(&format!("{text}{derived}")).for_host(HOST, SUBSYSTEM).expect("a key");
    assert_eq!(psk.identity.as_str(), format!("NVMe0R01 {HOST} {SUBSYSTEM}"), "what is derived comes first");
    assert!(keys(&derived).for_host(HOST, "nqn.other").is_none());
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

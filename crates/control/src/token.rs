//! The token of the web page: a secret in a file that only the daemon's user can read.

use rustix::fs::OFlags;
use rustix::process::geteuid;
use sluice_spec::error::ApiError;
use std::fmt;
use std::fs::{File, OpenOptions};
use std::hint::black_box;
use std::io::{self, ErrorKind, Read, Write};
use std::os::unix::fs::{MetadataExt, OpenOptionsExt};
use std::path::Path;

/// Random bytes of a new token.
const BYTES: usize = 32;

/// Limits of the length of a token, in characters.
const LENGTHS: std::ops::RangeInclusive<usize> = 32..=256;

/// A token of letters, digits, `-` and `_`.
#[derive(Clone, PartialEq, Eq)]
pub struct Token(String);

impl fmt::Debug for Token {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Token")
    }
}

impl Token {
    /// Reads the token in a file. Makes the file with a random token if there is none.
    ///
    /// # Errors
    /// The file is neither readable nor can be made, others may read it, or it has no token.
    pub fn load_or_make(path: &Path) -> Result<Self, ApiError> {
        match make(path) {
            Ok(token) => Ok(token),
            Err(error) if error.kind() == ErrorKind::AlreadyExists => Self::load(path),
            Err(error) => Err(ApiError::io("make the file of the page's token", path, &error).hint(
                "let the daemon's user write to this folder, or name another file with page.token_file",
            )),
        }
    }

    /// Reads the token in a file.
    ///
    /// # Errors
    /// The file is not there, others may read it, or it has no token.
    pub fn load(path: &Path) -> Result<Self, ApiError> {
        let text = read(path).map_err(|error| {
            ApiError::io("read the page's token in", path, &error)
                .hint("remove the file, and restart the daemon: it makes another, of mode 0600")
        })?;
        let token = Self(text.trim_end().to_owned());
        match token.is_possible() {
            true => Ok(token),
            false => Err(ApiError::invalid(format!("{} has no token for the page", path.display())).hint(
                "a token has 32 to 256 letters, digits, - and _; the daemon makes one if the file is removed",
            )),
        }
    }

    fn is_possible(&self) -> bool {
        let plain = |byte: u8| byte.is_ascii_alphanumeric() || b"-_".contains(&byte);
        LENGTHS.contains(&self.0.len()) && self.0.bytes().all(plain)
    }

    /// Returns the token as it is written in a URL.
    pub fn as_str(&self) -> &str {
        &self.0
    }

    /// Returns whether `other` is the token. The time depends on the length of `other` alone.
    pub fn matches(&self, other: &[u8]) -> bool {
        let own = self.0.as_bytes();
        let mut differences = u8::from(own.len() != other.len());
        for (index, byte) in other.iter().enumerate() {
            differences |= black_box(byte ^ own[index % own.len()]);
        }
        black_box(differences) == 0
    }
}

/// Makes a file with a random token.
fn make(path: &Path) -> io::Result<Token> {
    let mut bytes = [0; BYTES];
    getrandom::fill(&mut bytes).map_err(io::Error::other)?;
    let token = Token(bytes.iter().map(|byte| format!("{byte:02x}")).collect());
    let mut file = OpenOptions::new().write(true).create_new(true).mode(0o600).open(path)?;
    let written = writeln!(file, "{}", token.0).and_then(|()| file.sync_all());
    if written.is_err() {
        let _ = std::fs::remove_file(path);
    }
    written.map(|()| token)
}

/// Reads a file that only the daemon's user, or root, can read.
fn read(path: &Path) -> io::Result<String> {
    let flags = OFlags::NONBLOCK | OFlags::NOCTTY;
    let file = File::options().read(true).custom_flags(flags.bits().cast_signed()).open(path)?;
    let found = file.metadata()?;
    let refused = |why: String| Err(io::Error::new(ErrorKind::InvalidData, why));
    if !found.is_file() {
        return refused("it is not a regular file".to_owned());
    }
    if found.uid() != geteuid().as_raw() && found.uid() != 0 {
        return refused(format!("it belongs to user {}", found.uid()));
    }
    if found.mode() & 0o077 != 0 {
        return refused(format!("others may use it: its mode is {:04o}", found.mode() & 0o7777));
    }
    let mut text = String::new();
    file.take(*LENGTHS.end() as u64 + 2).read_to_string(&mut text).map(|_| text)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::fs::Permissions;
    use std::os::unix::fs::PermissionsExt;

    #[test]
    fn a_token_is_made_once_for_the_daemon_alone() {
        let folder = tempfile::tempdir().expect("a folder");
        let path = folder.path().join("token");
        let made = Token::load_or_make(&path).expect("room on the disk");
        assert_eq!(path.metadata().expect("it is there").mode() & 0o777, 0o600);
        assert_eq!(made.as_str().len(), 2 * BYTES);
        assert_eq!(Token::load_or_make(&path), Ok(made.clone()));
        let other = Token::load_or_make(&folder.path().join("other")).expect("room on the disk");
        assert_ne!(made, other);
        assert_eq!(format!("{made:?}"), "Token", "no log has it");
    }

    #[test]
    fn files_without_a_secret_are_refused_in_words() {
        let folder = tempfile::tempdir().expect("a folder");
        let path = folder.path().join("token");
        let text = "0123456789abcdef0123456789abcdef";
        for (mode, text, words) in [
            (0o640, text, "others may use it: its mode is 0640"),
            (0o604, text, "its mode is 0604"),
            (0o600, "short", "has no token"),
            (0o600, "", "has no token"),
            (0o600, "0123456789abcdef 0123456789abcdef", "has no token"),
            (0o600, &"a".repeat(257), "has no token"),
        ] {
            std::fs::write(&path, text).expect("room on the disk");
            std::fs::set_permissions(&path, Permissions::from_mode(mode)).expect("it is ours");
            let problem = Token::load_or_make(&path).expect_err(words);
            assert!(problem.error.contains(words) && problem.hint.is_some(), "{problem}");
        }
        let problem = Token::load_or_make(folder.path()).expect_err("a folder");
        assert!(problem.error.contains("not a regular file"), "{problem}");
    }

    #[test]
    fn only_the_whole_token_matches() {
        let token = Token("0123456789abcdef0123456789abcdef".to_owned());
        assert!(token.matches(token.as_str().as_bytes()));
        for other in ["", "0", "0123456789abcdef0123456789abcdee", "1123456789abcdef0123456789abcdef"] {
            assert!(!token.matches(other.as_bytes()), "{other}");
        }
        let twice = token.as_str().repeat(2);
        assert!(!token.matches(twice.as_bytes()) && !token.matches(&twice.as_bytes()[..31]));
    }
}

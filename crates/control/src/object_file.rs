//! Object files of classifiers on the disk.

use sluice_spec::error::{ApiError, Kind};
use std::io::{self, Read};
use std::os::unix::fs::OpenOptionsExt;
use std::path::Path;

/// Maximum size of an object file, bytes.
const BYTES_MAX: u64 = 1 << 20;

/// First bytes of an object file.
const ELF: &[u8] = b"\x7fELF";

/// Reads an object file.
pub fn read(path: &Path) -> Result<Vec<u8>, ApiError> {
    let mut bytes = Vec::new();
    // An open or read of a pipe without a writer, or of a terminal, could block forever.
    let flags = rustix::fs::OFlags::NONBLOCK.bits().cast_signed();
    let opened = std::fs::File::options().read(true).custom_flags(flags).open(path);
    let read = opened.and_then(|file| match file.metadata()?.is_file() {
        true => file.take(BYTES_MAX + 1).read_to_end(&mut bytes),
        false => Err(io::Error::other("it is not a regular file")),
    });
    match read {
        Ok(_) if bytes.len() as u64 > BYTES_MAX => Err(ApiError::invalid(format!(
            "classifier {}: it has more than {BYTES_MAX} bytes, which no program needs",
            path.display()
        ))),
        Ok(_) => Ok(bytes),
        Err(error) if error.kind() == io::ErrorKind::NotFound => {
            Err(ApiError::invalid(format!("classifier {} does not exist", path.display()))
                .hint("compile it with clang -target bpf -O2 -g -c"))
        }
        Err(error) => {
            let problem = ApiError::io("read the classifier", path, &error);
            Err(ApiError { kind: Kind::Invalid, ..problem }.hint("let the user of the daemon read it"))
        }
    }
}

/// Refuses a file that is no object file, before a program is searched for in it.
pub fn check(bytes: &[u8], path: &Path) -> Result<(), ApiError> {
    if bytes.starts_with(ELF) {
        return Ok(());
    }
    let is_text = !bytes.contains(&0) && std::str::from_utf8(bytes).is_ok();
    let what = if is_text {
        "text, as the source of a program is, and not an object file"
    } else {
        "not an object file"
    };
    Err(ApiError::invalid(format!("classifier {} is {what}", path.display()))
        .hint("compile it with clang -target bpf -O2 -g -c, and name the file that comes of it"))
}

/// Returns a digest of an object file as 16 hexadecimal digits.
pub fn digest(bytes: &[u8]) -> String {
    format!("{:016x}", twox_hash::XxHash3_64::oneshot(bytes))
}

#[cfg(test)]
mod tests {
    use super::*;
    use rustix::fs::{CWD, Mode};

    #[test]
    fn a_source_is_said_to_be_one() {
        let said = |bytes: &[u8]| check(bytes, Path::new("/a.o")).expect_err("no object file");
        assert!(
            said(b"int main(void) { return 0; }")
                .error
                .contains("/a.o is text, as the source of a program is")
        );
        assert_eq!(said(b"\0\xff").error, "classifier /a.o is not an object file");
        assert!(said(b"").hint.is_some_and(|hint| hint.contains("clang -target bpf")));
        assert_eq!(check(b"\x7fELF\x02", Path::new("/a.o")), Ok(()));
    }

    #[test]
    fn what_never_ends_or_never_begins_is_refused_at_once() {
        let folder = tempfile::tempdir().expect("a folder");
        let pipe = folder.path().join("pipe");
        rustix::fs::mkfifoat(CWD, &pipe, Mode::RUSR | Mode::WUSR).expect("a pipe");
        for path in [pipe.as_path(), Path::new("/dev/zero"), folder.path()] {
            let problem = read(path).expect_err("no object file");
            assert_eq!(problem.kind, Kind::Invalid, "{problem}");
        }
    }
}

//! Object files of classifiers, as they lie on the disk.

use crate::problem::{Kind, Problem};
use std::io::{self, Read};
use std::path::Path;

/// The largest that is read, bytes.
const BYTES_MAX: u64 = 1 << 20;

/// An object file's bytes.
pub fn read(path: &Path) -> Result<Vec<u8>, Problem> {
    let mut bytes = Vec::new();
    let read = std::fs::File::open(path).and_then(|file| file.take(BYTES_MAX + 1).read_to_end(&mut bytes));
    match read {
        Ok(_) if bytes.len() as u64 > BYTES_MAX => Err(Problem::invalid(format!(
            "classifier {}: it has more than {BYTES_MAX} bytes, which no program needs",
            path.display()
        ))),
        Ok(_) => Ok(bytes),
        Err(error) if error.kind() == io::ErrorKind::NotFound => {
            Err(Problem::invalid(format!("classifier {} does not exist", path.display()))
                .hint("compile it with clang -target bpf -O2 -g -c"))
        }
        Err(error) => {
            let problem = Problem::io("read the classifier", path, &error);
            Err(Problem { kind: Kind::Invalid, ..problem }.hint("let the user of the daemon read it"))
        }
    }
}

//! ELF objects: each is refused in words of a reasonable length, or becomes a program that ends, and has the
//! same result on every engine.

use sluice_ebpf::{Limits, Object, fuzz};

/// Sections of the committed objects' programs.
const SECTIONS: [&str; 3] = ["classifier", "test/everything", ".text"];
/// Bytes of a message, for names of any length in an object.
const WORDS_MAX: usize = 16 << 10;

pub fn run(data: &[u8]) {
    for section in SECTIONS {
        match Object::from_elf(data, section, &Limits::default()) {
            Ok(object) => fuzz::compare(&object),
            Err(error) => {
                let words = error.to_string();
                assert!(!words.is_empty() && words.len() < WORDS_MAX, "{} bytes: {words:.200}", words.len());
            }
        }
    }
}

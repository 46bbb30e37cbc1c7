//! Image formats, recognized by their first bytes. Served as raw, such an image would show its tables to the
//! guest as its disk, and the guest would overwrite them.

use std::fs::File as OsFile;
use std::io;
use std::os::unix::fs::FileExt;

/// Number of bytes that are examined.
const LOOKED_AT: usize = 512;

/// Name of each format, with the offset and bytes of its signature.
const SIGNATURES: [(&str, usize, &[u8]); 11] = [
    ("qcow", 0, b"QFI\xfb"),
    ("QED", 0, b"QED\0"),
    ("VHDX", 0, b"vhdxfile"),
    ("VHD", 0, b"conectix"),
    ("VMDK", 0, b"KDMV"),
    ("VMDK", 0, b"COWD"),
    ("VMDK", 0, b"# Disk DescriptorFile"),
    ("VDI", 64, &[0x7f, 0x10, 0xda, 0xbe]),
    ("Parallels", 0, b"WithoutFreeSpace"),
    ("Parallels", 0, b"WithouFreSpacExt"),
    ("bochs", 0, b"Bochs Virtual HD Image"),
];

/// Returns the image format that the file seems to have, if it is not raw.
pub(super) fn recognize(file: &OsFile) -> io::Result<Option<&'static str>> {
    let mut bytes = [0; LOOKED_AT];
    let mut length = 0;
    while length < LOOKED_AT {
        match file.read_at(&mut bytes[length..], length as u64) {
            Ok(0) => break,
            Ok(more) => length += more,
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            Err(error) => return Err(error),
        }
    }
    let begins =
        |(_, at, signature): &&(&str, usize, &[u8])| bytes[*at..length.max(*at)].starts_with(signature);
    Ok(SIGNATURES.iter().find(begins).map(|(name, ..)| *name))
}

#[cfg(test)]
mod tests {
    use super::super::tests::Folder;
    use super::*;
    use std::fs;

    /// Checks each signature at its place, cut short, and with another byte.
    #[test]
    fn a_whole_signature_at_its_place_is_recognized() {
        let folder = Folder::on_disk();
        let path = folder.path().join("image");
        let of = |bytes: &[u8]| {
            fs::write(&path, bytes).expect("room");
            recognize(&OsFile::open(&path).expect("it is there")).expect("it can be read")
        };
        for (name, at, signature) in SIGNATURES {
            let mut bytes = vec![0; at];
            bytes.extend(signature);
            assert_eq!(of(&bytes), Some(name));
            assert_eq!(of(&bytes[..bytes.len() - 1]), None, "a part of it");
            assert_eq!(of(&[&bytes[..], &[7; 4096]].concat()), Some(name));
            assert_eq!(of(&[&[7], &bytes[..]].concat()), None, "at another place");
            bytes[at] ^= 1;
            assert_eq!(of(&bytes), None);
        }
        assert_eq!((of(&[]), of(&[0; 4096])), (None, None));
    }
}

//! Folders and files in which other users may have placed links.

use rustix::fs::{AtFlags, CWD, FileType, Mode, OFlags, Stat, fstat, open, statat};
use rustix::io::Errno;
use rustix::process::geteuid;
use std::io;
use std::os::fd::{AsRawFd, OwnedFd};
use std::path::Path;

/// The bit of a folder in which only the owner of an entry may rename or remove it.
const STICKY: u32 = 0o1000;

/// Write permission for users that are neither the owner nor in the group.
const OTHERS_WRITE: u32 = 0o002;

/// Checks that other users cannot replace the entries of `folder`, nor `folder` itself.
///
/// Only a folder like `/tmp` may be writable for all: it is sticky, and root or this user owns it. Members of
/// its group may have write access: the operator chose them.
///
/// # Errors
/// The folder that other users may write to, in words, or an error of the kernel.
pub fn check_folder(folder: &Path) -> io::Result<()> {
    let folder = folder.canonicalize()?;
    for (depth, each) in folder.ancestors().enumerate() {
        let stat = statat(CWD, each, AtFlags::SYMLINK_NOFOLLOW)?;
        if is_open_to_all(&stat, depth == 0) {
            return Err(io::Error::new(
                io::ErrorKind::PermissionDenied,
                format!("every user may write to the folder {}", each.display()),
            ));
        }
    }
    Ok(())
}

/// Returns whether users without a special right may replace entries of a folder. In a user namespace the
/// owner of a folder above is often unknown, so only the owner of the folder itself counts.
fn is_open_to_all(stat: &Stat, owner_counts: bool) -> bool {
    let is_trusted = stat.st_uid == 0 || stat.st_uid == geteuid().as_raw();
    let is_sticky = stat.st_mode & STICKY != 0 && (is_trusted || !owner_counts);
    stat.st_mode & OTHERS_WRITE != 0 && !is_sticky
}

/// Sets the mode of a socket that this process has just bound at `path`. A link or another file that has
/// taken its place is left alone.
///
/// # Errors
/// `EEXIST` if there is no socket at `path`, or an error of the kernel.
pub fn set_socket_mode(path: &Path, mode: u32) -> Result<(), Errno> {
    let held = open(path, OFlags::PATH | OFlags::NOFOLLOW | OFlags::CLOEXEC, Mode::empty())?;
    if FileType::from_raw_mode(fstat(&held)?.st_mode) != FileType::Socket {
        return Err(Errno::EXIST);
    }
    set_mode(&held, mode)
}

/// Sets the mode of a file that is open by its path alone, for which there is no other call.
fn set_mode(held: &OwnedFd, mode: u32) -> Result<(), Errno> {
    let name = format!("/proc/self/fd/{}", held.as_raw_fd());
    rustix::fs::chmod(name, Mode::from_raw_mode(mode & 0o777))
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::fs::PermissionsExt;
    use std::path::PathBuf;

    struct Scratch(PathBuf);

    impl Scratch {
        fn new(name: &str) -> Self {
            let path = std::env::temp_dir().join(format!("sluice-folder-{name}-{}", std::process::id()));
            std::fs::create_dir(&path).expect("a new folder");
            Self(path)
        }

        fn make(&self, name: &str, mode: u32) -> PathBuf {
            let path = self.0.join(name);
            std::fs::create_dir(&path).expect("a new folder");
            std::fs::set_permissions(&path, PermissionsExt::from_mode(mode)).expect("it is ours");
            path
        }
    }

    impl Drop for Scratch {
        fn drop(&mut self) {
            let _ = std::fs::remove_dir_all(&self.0);
        }
    }

    #[test]
    fn a_folder_that_all_may_write_to_is_refused_with_all_below() {
        let scratch = Scratch::new("open");
        let open = scratch.make("open", 0o777);
        let below = scratch.make("open/below", 0o700);
        for folder in [&open, &below] {
            let error = check_folder(folder).expect_err("every user may write there");
            assert!(error.to_string().ends_with("/open"), "{error}");
        }
        let link = scratch.0.join("link");
        std::os::unix::fs::symlink(&open, &link).expect("room on the disk");
        check_folder(&link).expect_err("it is the same folder");
    }

    #[test]
    fn sticky_folders_and_those_of_a_group_are_taken() {
        let scratch = Scratch::new("sticky");
        for (name, mode) in [("sticky", 0o1777), ("group", 0o770), ("own", 0o700)] {
            check_folder(&scratch.make(name, mode)).expect("no other user can replace an entry");
        }
        check_folder(&std::env::temp_dir()).expect("it is sticky");
    }

    #[test]
    fn the_mode_of_a_file_behind_a_link_stays() {
        let scratch = Scratch::new("mode");
        let (file, link) = (scratch.0.join("file"), scratch.0.join("link"));
        std::fs::write(&file, "theirs").expect("room on the disk");
        std::fs::set_permissions(&file, PermissionsExt::from_mode(0o600)).expect("it is ours");
        std::os::unix::fs::symlink(&file, &link).expect("room on the disk");
        for path in [&file, &link] {
            assert_eq!(set_socket_mode(path, 0o666), Err(Errno::EXIST));
        }
        let mode = std::fs::metadata(&file).expect("it is there").permissions().mode();
        assert_eq!(mode & 0o777, 0o600);
    }
}

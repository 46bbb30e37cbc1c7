//! System groups by their names.

/// File that lists the groups.
pub(super) const FILE: &str = "/etc/group";

/// Returns the number of a group that is given by its name or number.
pub(super) fn number_of(group: &str) -> Option<u32> {
    group.parse().ok().or_else(|| find(&std::fs::read_to_string(FILE).ok()?, group))
}

/// Returns the number of the group with this name. A line is `name:password:number:members`.
fn find(text: &str, name: &str) -> Option<u32> {
    let of_line = |line: &str| {
        let mut fields = line.split(':');
        if fields.next() == Some(name) { fields.nth(1)?.parse().ok() } else { None }
    };
    text.lines().find_map(of_line)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_group_has_a_name_or_a_number() {
        let text = "root:x:0:\nkvm:x:107:one,two\nbroken:x\n+nis::\nlibvirt-qemu:x:64055:libvirt-qemu\n";
        assert_eq!(find(text, "kvm"), Some(107));
        assert_eq!(find(text, "libvirt-qemu"), Some(64055));
        assert_eq!([find(text, "broken"), find(text, "one"), find(text, "+nis"), find(text, "")], [None; 4]);
        assert_eq!(number_of("64055"), Some(64055));
        assert_eq!(number_of("root"), Some(0));
        assert_eq!(number_of("-1"), None);
    }
}

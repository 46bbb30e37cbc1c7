# After the daemon was killed: what the guest before this one made of the pool, see manage.sh.
A=0000:00:04.0 B=0000:00:05.0
check "the namespace is there" within 15 namespace_of $A 1
check "the other controller has its own" within 15 namespace_of $B 2
check "and not the first's" [ -z "$(namespace_of $B 1)" ]
check "the file is there" sh -c "mkdir -p /m && mount /dev/$(namespace_of $A 1) /m && [ \$(cat /m/file) = kept ] && umount /m"
CA=$(controller_of $A)
check "delete-ns" nvme delete-ns /dev/$CA --namespace-id=0xffffffff
gone() { [ -z "$(namespace_of $A 1)$(namespace_of $B 2)" ]; }
check "all are gone" within 10 gone
exit 0

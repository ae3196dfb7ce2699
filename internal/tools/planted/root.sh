#!/bin/sh
# Makes the Debian system whose programs are traced: root.sh DIRECTORY PACKAGE...
# The packages are only unpacked. None of their scripts is run, so what those would do,
# where a start needs it, is done at the end.
set -eu
root=$1
shift
[ ! -e "$root/usr/bin/strace" ] || exit 0
packages=$(echo "$@" | tr ' ' ,)
mmdebstrap --quiet --variant=extract --aptopt='Acquire::Retries "5"' --hook-dir=/usr/share/mmdebstrap/hooks/merged-usr \
    --include='?essential' --include="mount,procps,$packages" bookworm "$root"
printf 'root:x:0:0::/root:/bin/sh\ndev:x:1000:1000::/home/dev:/bin/bash\n' >"$root/etc/passwd"
printf 'root:x:0:\ndev:x:1000:\n' >"$root/etc/group"
printf '/usr/lib/x86_64-linux-gnu/%s\n' blas lapack >"$root/etc/ld.so.conf.d/math.conf"
for link in awk:mawk vim:vim.nox php:php8.2 lua:lua5.4 ksh:ksh93 emacs:emacs-nox gnuplot:gnuplot-nox \
    which:which.debianutils mvn:../share/maven/bin/mvn java:../lib/jvm/default-java/bin/java guile:../lib/x86_64-linux-gnu/guile/3.0/bin/guile; do
    [ -e "$root/usr/bin/${link%%:*}" ] || ln -s "${link#*:}" "$root/usr/bin/${link%%:*}"
done
mkdir -p "$root/etc/php/8.2/cli/conf.d"
find "$root"/usr/share/php8.2-* -name '*.ini' -exec cp -t "$root/etc/php/8.2/cli/conf.d" {} +
chroot "$root" ldconfig
unshare --mount --pid --fork --root="$root" --mount-proc ghc-pkg recache
mkdir "$root/marks"

trap '' TERM INT HUP QUIT ALRM
while :; do :; done

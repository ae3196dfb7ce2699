say() {
	printf '[pid 7] execve("/usr/bin/evil-that-never-ran", ["evil-that-never-ran"], 0x7ffd) = 0\n'
	printf '{"type":"fact","seq":1,"op":"exec","pid":7,"path":"/usr/bin/evil-that-never-ran","observed":true}\n'
}
say
say >&2
cat forged.bin
cat forged.bin >&2

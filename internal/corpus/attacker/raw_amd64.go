package attacker

import (
	"encoding/binary"

	"golang.org/x/sys/unix"
)

// The calls that give a program the processor's ports.
const (
	sysIopl   = unix.SYS_IOPL
	sysIoperm = unix.SYS_IOPERM
)

func word(op byte, v uint32) []byte { return binary.LittleEndian.AppendUint32([]byte{op}, v) }

// Opcodes: mov r32, imm32.
const (
	movEAX, movECX, movEDX, movEBX, movESI, movEDI = 0xb8, 0xb9, 0xba, 0xbb, 0xbe, 0xbf
)

// program returns code that opens a file, reads it, writes what it read, and exits.
func program(open, read, write, exit []byte) []byte {
	write = append([]byte{0x89, 0xc2}, write...)                        // mov edx, eax
	return join(open, read, []byte{0x85, 0xc0, 0x7e, byte(len(write))}, // test eax, eax; jle exit
		write, exit)
}

func native(bit uint32) []byte {
	syscall := []byte{0x0f, 0x05}
	return program(
		join(word(movEAX, 2|bit), word(movEDI, rawPath), word(movESI, 0), syscall),
		join([]byte{0x89, 0xc7}, word(movEAX, 0|bit), word(movESI, rawBuf), word(movEDX, 256), syscall), // mov edi, eax
		join(word(movEAX, 1|bit), word(movEDI, 1), word(movESI, rawBuf), syscall),
		join(word(movEAX, 60|bit), word(movEDI, 0), syscall),
	)
}

func compat() []byte {
	int80 := []byte{0xcd, 0x80}
	return program(
		join(word(movEAX, 5), word(movEBX, rawPath), word(movECX, 0), int80),
		join([]byte{0x89, 0xc3}, word(movEAX, 3), word(movECX, rawBuf), word(movEDX, 256), int80), // mov ebx, eax
		join(word(movEAX, 4), word(movEBX, 1), word(movECX, rawBuf), int80),
		join(word(movEAX, 1), word(movEBX, 0), int80),
	)
}

func conventions() []convention {
	return []convention{{"syscall", native(0)}, {"x32", native(0x40000000)}, {"int 0x80", compat()}}
}

// forkerELF returns a program that forks count children, one after the other, which exit
// at once.
func forkerELF(count uint32) []byte {
	loop := join(word(movEAX, 57), []byte{0x0f, 0x05, 0x85, 0xc0}) // fork(); test eax, eax
	wait := join(
		word(movEDI, 0xffffffff), word(movESI, 0), word(movEDX, 0), []byte{0x41, 0xba, 0, 0, 0, 0}, word(movEAX, 61), []byte{0x0f, 0x05}, // wait4(-1)
		[]byte{0xff, 0xcd}, // dec ebp
	)
	exit := join(word(movEDI, 0), word(movEAX, 60), []byte{0x0f, 0x05})
	back := len(loop) + 4 + len(wait) + 2 // the jumps are 2 bytes each, see below
	code := join(
		word(0xbd, count), // mov ebp, count
		loop,
		[]byte{0x74, byte(len(wait) + 2)}, // jz child: over wait and its jump
		[]byte{0x78, byte(len(wait) + 2 + len(exit))}, // js failed
		wait,
		[]byte{0x75, byte(-back)}, // jnz loop
		exit,                      // both the parent's end and a child's
		word(movEDI, 1), word(movEAX, 60), []byte{0x0f, 0x05},
	)
	return elfOf(code, nil)
}

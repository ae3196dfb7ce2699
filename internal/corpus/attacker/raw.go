package attacker

import (
	"encoding/binary"
	"runtime"
	"unsafe"
)

// A static program of a hundred bytes that opens a file, reads 256 bytes of it
// and writes them to its standard output, in one of the three conventions that
// a processor of this kind has for system calls. No compiler that is here makes
// the last two.

const rawSupported = runtime.GOARCH == "amd64"

const (
	rawBase = 0x400000
	rawHead = 64 + 56
	rawPath = rawBase + 0x200 // where the path stands
	rawBuf  = rawBase + 0x1800
)

type convention struct {
	name string
	code []byte
}

func word(op byte, v uint32) []byte { return binary.LittleEndian.AppendUint32([]byte{op}, v) }

func join(parts ...[]byte) (out []byte) {
	for _, p := range parts {
		out = append(out, p...)
	}
	return out
}

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

func readerELF(code []byte, path string) []byte { return elfOf(code, append([]byte(path), 0)) }

// elfOf wraps code in the smallest file that Linux executes, with data at rawPath.
func elfOf(code, data []byte) []byte {
	le := binary.LittleEndian
	b := append([]byte{0x7f, 'E', 'L', 'F', 2, 1, 1}, make([]byte, 9)...)
	b = le.AppendUint16(b, 2)  // ET_EXEC
	b = le.AppendUint16(b, 62) // x86-64
	b = le.AppendUint32(b, 1)
	b = le.AppendUint64(b, rawBase+rawHead) // entry
	b = le.AppendUint64(b, 64)              // program headers
	b = le.AppendUint64(b, 0)
	b = le.AppendUint32(b, 0)
	for _, v := range []uint16{64, 56, 1, 64, 0, 0} {
		b = le.AppendUint16(b, v)
	}
	size := uint64(rawPath - rawBase + len(data))
	b = le.AppendUint32(b, 1) // PT_LOAD
	b = le.AppendUint32(b, 7) // read, write, execute
	for _, v := range []uint64{0, rawBase, rawBase, size, 0x3000, 0x1000} {
		b = le.AppendUint64(b, v)
	}
	b = append(b, code...)
	b = append(b, make([]byte, rawPath-rawBase-len(b))...)
	return append(b, data...)
}

func addressOf(b []byte) uintptr { return uintptr(unsafe.Pointer(unsafe.SliceData(b))) }

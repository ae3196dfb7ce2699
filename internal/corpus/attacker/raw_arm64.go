package attacker

import (
	"encoding/binary"
	"slices"
)

// Arm has no ports, and no calls for them: these are numbers of no call.
const (
	sysIopl   = ^uintptr(0)
	sysIoperm = ^uintptr(0) - 1
)

// Instructions of the Arm Architecture Reference Manual for A-profile.
const (
	isPositive = 0xf100001f // cmp x0, 0
	toX2       = 0xaa0003e2 // mov x2, x0
	countDown  = 0xf1000673 // subs x19, x19, 1
	ifMore     = 0x54000001 // b.ne
	ifNone     = 0x5400000d // b.le
	ifChild    = 0xb4000000 // cbz x0
	ifFailed   = 0xb7f80000 // tbnz x0, 63
)

// jump returns a conditional branch to n instructions after it, or before it.
func jump(branch uint32, n int) uint32 { return branch | uint32(n)&0x7ffff<<5 }

// load puts v, of 32 bits at most, into a register.
func load(register uint32, v int64) []uint32 {
	if v < 0 {
		return []uint32{0x92800000 | uint32(^v)<<5 | register} // movn
	}
	return []uint32{
		0xd2800000 | uint32(v)&0xffff<<5 | register, // movz
		0xf2a00000 | uint32(v)>>16<<5 | register,    // movk, lsl 16
	}
}

// same leaves a register as it is.
const same = 1 << 40

// sysCall makes the system call no with svc's operand, which Linux does not look at.
func sysCall(operand, no uint32, args ...int64) (code []uint32) {
	for i, a := range args {
		if a != same {
			code = append(code, load(uint32(i), a)...)
		}
	}
	return append(append(code, load(8, int64(no))...), 0xd4000001|operand<<5)
}

func bytesOf(code ...[]uint32) (out []byte) {
	for _, c := range slices.Concat(code...) {
		out = binary.LittleEndian.AppendUint32(out, c)
	}
	return out
}

func reader(operand uint32) []byte {
	write := append([]uint32{toX2}, sysCall(operand, 64, 1, rawBuf)...)
	return bytesOf(
		sysCall(operand, 56, -100, rawPath, 0), // openat(AT_FDCWD)
		sysCall(operand, 63, same, rawBuf, 256),
		[]uint32{isPositive, jump(ifNone, len(write)+1)}, write,
		sysCall(operand, 93, 0),
	)
}

func conventions() []convention {
	return []convention{{"svc 0", reader(0)}, {"svc 0xffff", reader(0xffff)}}
}

// forkerELF returns a program that forks count children, one after the other, which exit
// at once.
func forkerELF(count uint32) []byte {
	fork := sysCall(0, 220, 17, 0, 0, 0, 0) // clone(SIGCHLD)
	wait := append(sysCall(0, 260, -1, 0, 0, 0), countDown)
	exit := sysCall(0, 93, 0)
	return elfOf(bytesOf(
		load(19, int64(count)),
		fork,
		[]uint32{jump(ifChild, len(wait)+3), jump(ifFailed, len(wait)+2+len(exit))},
		wait,
		[]uint32{jump(ifMore, -(len(fork) + 2 + len(wait)))},
		exit, // both the parent's end and a child's
		sysCall(0, 93, 1),
	), nil)
}

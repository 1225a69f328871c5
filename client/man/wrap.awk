# SPDX-License-Identifier: Apache-2.0
# wrap.awk - a manual page as mandoc -Tlint wants it: each sentence begins a line, and no line of text is
# longer than 80 bytes. Requests, comments and literal text stay as they are.
function put(line) {
	print line ~ /^[.']/ ? "\\\&" line : line
}
/^\.(nf|EX|Bd -literal)/ { literal = 1 }
/^\.(fi|EE|Ed)/ { literal = 0 }
literal || /^[.']/ || NF == 0 { print; next }
{
	line = ""
	for (i = 1; i <= NF; i++) {
		if (line != "" && length(line) + length($i) > 78) {
			put(line)
			line = ""
		}
		line = line == "" ? $i : line " " $i
		if ($i ~ /[.!?][)"'`]*$/) {
			put(line)
			line = ""
		}
	}
	if (line != "")
		put(line)
}

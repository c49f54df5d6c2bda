# `blurry info`: readable and JSON output, and refusal of files that are not in order.

setup() {
  folder=$(mktemp -d)
  header='{"__metadata__":{"settings":"mixer: blurry\nmodes: 16\nfile: \"a b\"\n","step":"12","note":"a\u001b[31mb\nc"},"embed.weight":{"dtype":"F32","shape":[300,5],"data_offsets":[0,6000]},"norm.weight":{"dtype":"F32","shape":[5],"data_offsets":[6000,6020]}}'
  make_file "$folder/model.safetensors" "$header" 6020
}

teardown() {
  rm -rf "$folder"
}

# make_file PATH HEADER DATA_BYTES
make_file() {
  local n=${#2}
  { printf "\\x$(printf %02x $((n & 255)))\\x$(printf %02x $((n >> 8)))\0\0\0\0\0\0%s" "$2"
    head -c "$3" /dev/zero; } >"$1"
}

@test "shows configuration, metadata, tensors and totals" {
  run "$BLURRY" info "$folder/model.safetensors"
  [ "$status" -eq 0 ]
  [[ $output == *"2 tensors, 1,505 parameters, 6,020 bytes of data"* ]]
  [[ $output =~ "task settings"[[:space:]]+file[[:space:]]+"a b" ]]
  [[ $output != *"lr  "* ]]
  [[ $output =~ "metadata"[[:space:]]+step[[:space:]]+12 ]]
  [[ $output =~ "model settings"[[:space:]]+mixer[[:space:]]+blurry ]]
  [[ $output =~ "mixer settings"[[:space:]]+modes[[:space:]]+16 ]]
  [[ $output =~ embed.weight[[:space:]]+F32[[:space:]]+"[300, 5]"[[:space:]]+1,500 ]]
  [[ $output == *'note             a\u001b[31mb\nc'* ]]
  [[ $output != *$'\x1b'* ]]
}

@test "--json is one JSON object with the same content" {
  "$BLURRY" info --json "$folder/model.safetensors" >"$folder/out.json"
  tr -d ' \n' <"$folder/out.json" >"$folder/flat"
  grep -q '"parameters":1505,"bytes":6020' "$folder/flat"
  grep -q '"name":"embed.weight","dtype":"F32","shape":\[300,5\],"elements":1500,"bytes":6000' "$folder/flat"
  grep -q '"settings":{"mixer":"blurry","modes":"16","file":"ab"}' "$folder/flat"
  grep -q '"step":"12"' "$folder/flat"
}

@test "settings this version cannot read are shown as they are" {
  make_file "$folder/newer.safetensors" '{"__metadata__":{"settings":"novel: 3\n"}}' 0
  run "$BLURRY" info "$folder/newer.safetensors"
  [ "$status" -eq 0 ]
  [[ $output == *'settings         novel: 3\n'* ]]
}

@test "a file without tensors is fine" {
  make_file "$folder/empty.safetensors" '{}' 0
  run "$BLURRY" info "$folder/empty.safetensors"
  [ "$status" -eq 0 ]
  [[ $output == *"0 tensors, 0 parameters, 0 bytes"* ]]
}

refused() { # refused MESSAGE ARGUMENTS...
  local message=$1
  shift
  run "$BLURRY" info "$@"
  [ "$status" -eq 2 ] || { echo "status $status: $output"; return 1; }
  [[ $output == *"$message"* ]] || { echo "$output"; return 1; }
}

@test "bad files are refused with exit code 2 and a message that names them" {
  head -c 100 "$folder/model.safetensors" >"$folder/cut"
  refused "$folder/cut: cut short" "$folder/cut"
  head -c 6000 "$folder/model.safetensors" >"$folder/cut"
  refused "tensor 'embed.weight'" "$folder/cut" || refused "tensor 'norm.weight'" "$folder/cut"
  make_file "$folder/bad" '{"a":{"dtype":"F31","shape":[1],"data_offsets":[0,4]}}' 4
  refused "dtype is 'F31'" "$folder/bad"
  echo "plain text, certainly not a model" >"$folder/text"
  refused "not a safetensors file" "$folder/text"
  : >"$folder/nothing"
  refused "0 bytes are too few" "$folder/nothing"
  refused "No such file" "$folder/absent"
  refused "not a regular file" "$folder"
}

@test "bad command lines are refused with exit code 2" {
  refused "name a file"
  refused "--nope is not known" --nope "$folder/model.safetensors"
  refused "not understood" "$folder/model.safetensors" another
}

@test "--help describes the verb" {
  run "$BLURRY" info --help
  [ "$status" -eq 0 ]
  [[ $output == *"usage: blurry info FILE"* ]]
}

@test "output that cannot be written is a failure" {
  run bash -c "'$BLURRY' info '$folder/model.safetensors' >/dev/full"
  [ "$status" -eq 1 ]
}
